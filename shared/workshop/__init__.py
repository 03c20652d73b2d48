"""The course's tool: starters with holes where the lessons are, checks that teach, hints, labs with planted faults."""
