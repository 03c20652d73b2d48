"""The texts that workloads are made of: questions, sentences, plain words; all written for this suite. Torch-free."""

import random

QUESTIONS = (
    "Why is the sky blue during the day and red in the evening?",
    "What is the difference between weather and climate?",
    "How does a bicycle stay upright while it moves?",
    "Why does bread rise when it is baked?",
    "What should I pack for three days of hiking in the mountains?",
    "How do I explain fractions to a nine-year-old?",
    "What are the advantages of trains over planes for short trips?",
    "How does a refrigerator make things cold?",
    "Why do leaves change their colour in autumn?",
    "What is a good way to learn a new language as an adult?",
    "How do noise-cancelling headphones work?",
    "What makes a password hard to guess?",
    "Why do we have leap years?",
    "How can I keep my houseplants alive while I am away for two weeks?",
    "What is the purpose of a constitution?",
    "How does a vaccine train the immune system?",
    "Why is the sea salty and a lake usually not?",
    "What does a conductor do during a concert?",
    "How do I remove a coffee stain from a white shirt?",
    "What is inflation, and who is hurt by it?",
    "How do birds find their way south in winter?",
    "Why do some metals rust and others do not?",
    "What is the idea behind open-source software?",
    "How do I politely decline an invitation to a wedding?",
    "Why does time seem to pass faster as we grow older?",
    "What is the difference between a virus and a bacterium?",
    "How is paper made from trees?",
    "Which habits help people to sleep well?",
    "How does a computer store a photograph?",
    "Why do we yawn when others yawn?",
    "What should a beginner know about growing tomatoes?",
    "How do tides come about, and why twice a day?",
)
MANNERS = (
    "",
    " Answer in two sentences.",
    " Explain it to a curious child.",
    " Give three short points.",
)
SENTENCES = (
    "The ferry leaves the old harbour at seven in the morning and returns after dark.",
    "Every shelf in the workshop carries a label with the year in which it was filled.",
    "A narrow path follows the river until it reaches the stone bridge.",
    "The committee will meet again on the second Thursday of the month.",
    "Please keep the window closed while the paint is drying.",
    "Nobody had expected that the smallest boat would win the race.",
    "The museum lends its maps to schools free of charge.",
    "Two engineers checked the pump and found a crack in the housing.",
    "In spring the orchard is full of bees, and in autumn it is full of children.",
    "The library moved its newspapers to the second floor, beside the reading room.",
    "She measured the table twice before she cut the board.",
    "Deliveries arrive at the back entrance between nine and eleven.",
    "The recipe asks for three eggs, a cup of flour and a little patience.",
    "Their train was late, so they walked the last mile along the canal.",
    "The lighthouse keeper wrote down the wind and the weather every evening.",
    "All visitors receive a badge, which they return when they leave the building.",
    "The new roof keeps out the rain, but the old one kept out the heat.",
    "An early frost damaged the vines on the northern slope.",
    "The orchestra rehearses in the town hall because the theatre is being repaired.",
    "He folded the letter, put it into the drawer and locked it.",
    "The bakery on the corner sells its bread at half price after six.",
    "Four bolts hold the bracket, and each of them must be tightened by hand.",
    "Our neighbours grow beans, onions and more pumpkins than they can eat.",
    "The survey shows that most people cross the square on foot.",
)
WORDS = (
    "about above across after again air all almost along also always among animal answer area back become been before "
    "began begin being below between book boy bring build call came carry change children city close cold come could "
    "country cover cross cut day deep distance door down draw dry early earth east eat end enough every example eye "
    "face family far farm fast father feel few field find fire first fish five floor fly follow food foot force form "
    "found four friend garden gave girl give glass gold good green ground group grow half hand hard head hear heat "
    "help high hill hold home horse hour house hundred idea inch island keep kind king knew land large last late laugh "
    "lead learn leave left letter life light line list little live long look low machine made make map mark measure "
    "mile mind money moon morning mother mountain move music name near never new next night north note notice number"
)
COPY = "Repeat the following text word for word, and write nothing else:\n\n"


def questions(rng: random.Random, num: int) -> list[str]:
    """Questions in a random order, each in one of several manners; the first 128 differ."""
    everything = [question + manner for manner in MANNERS for question in QUESTIONS]
    rng.shuffle(everything)
    return [everything[number % len(everything)] for number in range(num)]


def copy_tasks(rng: random.Random, num: int, num_sentences: tuple[int, int] = (3, 6)) -> list[str]:
    """Requests to repeat a passage, no two the same."""
    tasks: dict[str, None] = {}  # in order, each once
    while len(tasks) < num:
        tasks[COPY + " ".join(rng.sample(SENTENCES, rng.randint(*num_sentences)))] = None
    return list(tasks)


def plain_words(rng: random.Random, num_words: int) -> str:
    """Words in no order, about a token each for the usual tokenizers."""
    return " ".join(rng.choices(WORDS.split(), k=num_words))
