"""HTTP service for a guard, with a web page.

Limits are checked before work is done: connections, access, time and size of the body, pixels and scans before an image
is decoded, sizes before the network runs.
"""
