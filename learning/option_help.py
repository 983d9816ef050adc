"""What each option of a task means: comments of study.toml and host.toml, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OPTION_HELP: Final[Mapping[str, str]] = {
    "of": "the task that votes: a classifier",
    "method": "dp-fedavg, dp-fedsgd, fedprox, blur, lus, blur-lus",
    "queries": "public examples that participants vote on in a round",
    "pool": "share of the coordinator's examples that may be asked about; the rest judge the model",
    "confidence": "least share of votes that labels an example; 0 takes all",
    "server_epochs": "passes of the global model over what was labelled",
    "server_rate": "its step size; 0: client_rate",
    "server_batch_size": "its examples in one step; 0: batch_size",
    "column": "number of a column from 0, or label; several with commas",
    "low": "public lower bound of a value, in the column's units",
    "high": "public upper bound; values beyond count as the bound",
    "reduce": "what a participant's rows become",
    "count": "whether a participant may have no value; false is less noisy",
    "bins": "of equal width between the bounds, or classes from 0",
    "quantiles": "shares, with commas between; more of them cost nothing",
    "local_steps": "steps in a round, whatever the number of examples",
    "blur_weight": "lambda of BLUR: how hard a change longer than the clip is drawn back",
    "sparsity": "share of each array that LUS zeroes",
    "proximal_weight": "mu of FedProx",
    "client_rate": "step size of local training",
    "batch_size": "examples in one step",
    "local_epochs": "passes over the participant's own data in a round",
    "pooling": "side of the square of pixels averaged into one feature",
    "pixel_scale": "a feature is pixel_scale x pixel + pixel_offset",
    "pixel_offset": "",
    "features": "numbers in one example; 0: examples are images",
    "classes": "labels are 0 to classes - 1",
    "side": "of the images, in pixels",
    "channels": "of the images: 1 is grey, 3 are colours",
    "hidden": "units of the hidden layer, or of the LSTM",
    "initial_seed": "of the initial weights; public",
    "groups": "of channels that are normalised together",
    "vocabulary": "words, besides the four special ones",
    "length": "words of one example",
    "embedding": "numbers that stand for one word",
}
