"""Writes data/train.jsonl and data/test.jsonl: 240 and 60 rows that stand for your own."""

import json
import random
from pathlib import Path

numbers = random.Random(0)
folder = Path("data")
folder.mkdir(exist_ok=True)
for name, count in (("train", 240), ("test", 60)):
    with open(folder / f"{name}.jsonl", "w") as file:
        for _ in range(count):
            a, b = numbers.randint(10, 99), numbers.randint(10, 99)
            question = f"What is {a} + {b}? Reply with the number only."
            print(json.dumps({"question": question, "answer": str(a + b)}), file=file)
