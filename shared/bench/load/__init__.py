"""The load tester: timed requests to a server over HTTP, and what came of them. Knows no engine, only the API."""
