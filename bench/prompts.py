"""Prompts of the benches by kind; enough of each that no answer is asked for twice in a run."""

from __future__ import annotations

from collections.abc import Sequence

CHAT = (
    "Explain in a few paragraphs why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Give me a recipe for a simple vegetable soup, step by step.",
    "What should I look at when I buy a used bicycle?",
    "Describe how a bill becomes a law in the United States.",
    "How does a refrigerator keep food cold? Explain it to a child.",
    "Plan a weekend in the mountains for a family of four.",
    "What are the advantages and disadvantages of working from home?",
    "Tell me about the history of the printing press.",
    "Write an email to my landlord about a broken heater.",
    "How can I learn to play the guitar on my own?",
    "Explain the water cycle and why it matters.",
)

CODE = (
    "Write a Python function that returns the n-th Fibonacci number, then a second one that returns a list of them.",
    "Write a Python class for a bank account with deposit, withdraw and balance methods.",
    "Write a Python function that checks whether a string is a palindrome, with a docstring and three examples.",
    "Write a Python script that reads a CSV file and prints the average of each column.",
    "Write a JavaScript function that removes duplicates from an array, and explain each line.",
    "Write a Python function that sorts a list with bubble sort, then one with quicksort.",
    "Write a Python class for a stack with push, pop, peek and is_empty methods.",
    "Write an SQL query that lists the five customers with the most orders, and explain it.",
    "Write a Python function that counts how often each word occurs in a text file.",
    "Write HTML for a page with a heading, a list of three links and a form with two fields.",
    "Write a Python function that converts temperatures between Celsius and Fahrenheit.",
    "Write a Python program that plays rock, paper, scissors against the user.",
)

_PASSAGES = (
    "The Aurora Bridge was opened to traffic in 1932 after three years of work. It is 899 metres long and carries six"
    " lanes of the coastal highway across the strait. The engineers chose a steel cantilever design because the deep"
    " water made central piers too expensive. In 1974 the deck was widened, and in 2006 the bearings were replaced so"
    " that the bridge can withstand a strong earthquake. Today about 65,000 vehicles cross it every day.",
    "Honeybees live in colonies of up to sixty thousand individuals. A single queen lays all the eggs, as many as two"
    " thousand a day in early summer. The workers clean the cells, feed the larvae, build the comb and guard the"
    " entrance before they begin to forage at the age of three weeks. A forager visits about one hundred flowers on"
    " each trip and tells the others where food is to be found by dancing on the comb.",
    "The city council met on Tuesday to discuss the new bus timetable. Line 4 will run every ten minutes from seven in"
    " the morning until eight in the evening. Line 9 will no longer stop at the hospital, which is served by the new"
    " Line 12 instead. Tickets stay at two euros and forty cents, and children under the age of ten travel free. The"
    " new timetable comes into force on the first of March.",
    "Basalt is the most common rock of the ocean floor. It forms when lava that is rich in iron and magnesium cools"
    " quickly at the surface. Its grains are too small to be seen with the naked eye, and it is dark grey to black."
    " Where thick flows of basalt cool slowly, they shrink and crack into tall columns with six sides. Such columns"
    " can be seen at the Giant's Causeway in Northern Ireland and on the island of Staffa.",
    "The library lends books for four weeks and films for one week. A loan can be renewed twice, unless another reader"
    " has asked for the item. Whoever returns a book late pays twenty cents a day, but never more than five euros a"
    " book. Readers need a card, which is free for pupils and students and costs twelve euros a year for everyone"
    " else. The reading room on the second floor is open to all, even without a card.",
    "The marathon began at nine in the morning in front of the old town hall. More than twelve thousand runners from"
    " forty countries took part. The course leads along the river, crosses three bridges and ends in the stadium. The"
    " winner of the men's race needed two hours, nine minutes and fourteen seconds. The women's race was won by a"
    " nurse from Bergen, who had never run a marathon before and trained at night after her shifts.",
)

SUMMARISE = tuple(
    f"{task}\n\n{passage}"
    for task in (
        "Repeat the following text word for word, then summarise it in one sentence.",
        "Copy the most important sentences of the following text without changing them.",
    )
    for passage in _PASSAGES
)
"""Prompts whose answers copy from them."""

KINDS: dict[str, Sequence[str]] = {"chat": CHAT, "code": CODE, "summarise": SUMMARISE}


def numbered(kind: str, number: int) -> str:
    """Prompt of that kind for the number-th request: begins unlike all others, so that no KV can be shared."""
    prompts = KINDS[kind]
    return f"{number}. {prompts[number % len(prompts)]}"
