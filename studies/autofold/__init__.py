"""How good is AutoFold, really? What its choice gives away, and whether another rule gives away less."""
