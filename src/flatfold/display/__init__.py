"""What people see, on a terminal, in a notebook, on a page and in a file: numbers in text, tables and figures."""
