"""Phrases of the synthetic tasks; the tokenizer of the backbone ``tiny`` knows every word."""

OPENINGS = (
    "i thought", "we felt", "my sister said", "our neighbour wrote", "they told us",
    "everyone agreed", "he admitted", "she remembered", "the guests found", "my friend believed",
)  # fmt: skip
NOUNS = (
    "film", "soup", "hotel", "concert", "lesson", "play", "bread", "journey",
    "service", "story", "party", "coffee", "room", "song", "game", "meal",
)  # fmt: skip
DAYS = (
    "on sunday", "last night", "in the city", "near the station", "this spring",
    "at the lake", "after work", "by the sea", "on the island", "two weeks ago",
)  # fmt: skip
MANNERS = ("really", "truly", "quite", "indeed", "not", "hardly")
NEGATIONS = 2  # the last ones of MANNERS
ADJECTIVES = (
    (
        "awful", "terrible", "boring", "dreadful", "horrible", "poor", "disappointing", "bad",
        "miserable", "unpleasant", "dull", "annoying", "nasty", "weak", "ugly", "painful",
    ),
    (
        "wonderful", "great", "lovely", "excellent", "delightful", "superb", "pleasant", "good",
        "brilliant", "amazing", "charming", "splendid", "perfect", "fantastic", "fine", "beautiful",
    ),
)  # fmt: skip

PERSONS = (
    "nurse", "farmer", "teacher", "painter", "sailor",
    "baker", "lawyer", "student", "driver", "singer",
)  # fmt: skip
VERBS = ("waited", "sang", "rested", "smiled", "talked", "laughed")
LEADS = (
    "there was somebody who", "there was a person who", "it was someone who", "we met one who",
)  # fmt: skip
#: Two aspects, each with five specific phrases of either sort: (specific, general).
ASPECTS = (
    (
        ("in the kitchen", "in the library", "in the bedroom", "in the office", "in the hallway",
         "in the garden", "on the beach", "in the forest", "by the river", "on the hill"),
        ("indoors", "outdoors"),
    ),
    (
        ("before breakfast", "at dawn", "at sunrise", "at eight in the morning", "after waking up",
         "after dinner", "at midnight", "at dusk", "at sunset", "before going to bed"),
        ("early in the day", "late in the day"),
    ),
)  # fmt: skip
ADDITIONS = ("with an old friend", "because of a letter")

#: Similarity and entities: "the {person} {verb} {thing} {place} {time}".
SCENE = (
    tuple(f"the {person}" for person in PERSONS[:8]),
    ("carried", "painted", "dropped", "bought", "found", "sold"),
    ("a red lamp", "an old chair", "a small boat", "a green coat", "a heavy box", "a silver ring"),
    ("in the kitchen", "on the beach", "at the market", "near the bridge",
     "under the stairs", "on the train"),
    ("at noon", "at midnight", "last winter", "on monday", "before dinner", "during the storm"),
)  # fmt: skip


def vocabulary() -> list[str]:
    """Return all words of the phrases, sorted."""
    phrases = ["the", "was", *OPENINGS, *NOUNS, *DAYS, *MANNERS, *PERSONS, *VERBS, *LEADS]
    phrases += ADDITIONS
    for group in (*ADJECTIVES, *SCENE, *(part for aspect in ASPECTS for part in aspect)):
        phrases += group
    return sorted({word for phrase in phrases for word in phrase.split()})
