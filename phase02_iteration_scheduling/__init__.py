"""Phase 2: scheduling per step instead of per request. Requests join and leave the running batch between steps."""
