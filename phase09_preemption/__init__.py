"""Phase 9: nobody is dropped. When memory is short the newest sequence gives way, and comes back with its work."""
