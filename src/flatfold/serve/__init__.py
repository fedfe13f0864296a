"""A guard as a service: what it says, over HTTP."""
