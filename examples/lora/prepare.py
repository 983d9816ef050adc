"""A backbone from public text, and a file for each of Shakespeare's first roles: `python prepare.py FOLDER ROLES`."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import torch
from lora import LENGTH, LETTERS, transformer
from safetensors.torch import save_file
from torch.nn import functional

from learning.prepared_data import open_prepared

PAGES = Path(__file__).resolve().parents[2] / "docs"  # the public text: this checkout's documentation
STEPS = int(os.environ.get("STEPS", 400))


def main(folder, most):
    text = " ".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("**/*.md")))
    letters = sequences(re.sub(r"[^a-z']+", " ", text.lower()))
    save_file(trained(letters).state_dict(), "plain_english.safetensors")
    (folder / "roles").mkdir(parents=True)
    plays = open_prepared("shakespeare")
    written = [role_of(plays, "train", user) for user in range(most)]
    for number, rows in enumerate(written, 1):
        write(folder / "roles" / f"{number:03}.npz", rows)
    held_out = range(plays.users("test").max() + 1)
    write(folder / "held-out.npz", np.concatenate([role_of(plays, "test", user) for user in held_out])[::4])


def role_of(plays, part, user):
    """What a role says, without the words that have no number."""
    numbers = plays.labels(part)[plays.users(part) == user].flat
    words = plays.manifest["vocabulary"]
    return sequences(" ".join(words[number - 1] for number in numbers if 0 < number <= len(words)))


def sequences(text):
    """Numbers of letters, (n, LENGTH + 1): the last of a row is the first of the next."""
    numbers = np.array([LETTERS.index(letter) for letter in text])
    count = (len(numbers) - 1) // LENGTH
    return np.stack([numbers[LENGTH * row :][: LENGTH + 1] for row in range(count)])


def write(file, rows):
    np.savez(file, features=rows[:, :-1].astype(np.int32), labels=rows[:, 1:])


def trained(rows):
    torch.set_num_threads(1)  # several are slower on a busy machine
    torch.manual_seed(0)
    model = transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(STEPS):
        batch = torch.from_numpy(rows[np.random.default_rng(step).integers(len(rows), size=32)])
        scores = model(input_ids=batch[:, :-1]).logits
        loss = functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"the backbone on its own text: loss {loss:.3f} after {STEPS} steps")
    return model


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
