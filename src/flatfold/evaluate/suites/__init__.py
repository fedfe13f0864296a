"""What is judged on what: suites by name and from files, and help to make one."""
