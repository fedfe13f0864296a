"""Which method, without OOD data? Every single method, rules that select one, and FourFold, on many networks."""
