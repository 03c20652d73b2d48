"""Phase 3: a queue with limits. When it is full a request is refused at once; one that waits too long is told so."""
