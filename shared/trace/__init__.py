"""Recordings of an engine at work: written while it runs, replayed in the live page, or opened in Perfetto.

engine --events and steps--> Tap (raw, on the stepping thread) --> Encoder (records, anywhere) --> a file, or the page
"""
