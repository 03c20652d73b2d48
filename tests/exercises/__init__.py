"""The checks of the exercises: without weights, each a sentence, each with a message that teaches.

Run by `python -m shared.workshop check 4.1` in a learner's tree, and by tests/test_workshop.py.
"""
