"""Phase 1: one request at a time, behind a lock. The baseline that every later phase is measured against."""
