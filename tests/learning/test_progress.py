"""Which model is the best so far, and when a study no longer gets better."""

from __future__ import annotations

from learning.progress import Progress


def followed(figures: list[float | None], stderr: float = 0.02) -> Progress:
    progress = Progress(True)
    for round_, figure in enumerate(figures, 1):
        said = {} if figure is None else {"accuracy": figure, "accuracy_stderr": stderr}
        progress.note(round_, 1.0, 0.0, said)
    return progress


def test_participants_judge_the_model_before_the_round() -> None:
    best = followed([0.1, 0.5, 0.7, 0.6]).best
    assert best is not None
    assert (best.round, best.figure) == (2, 0.7)


def test_what_noise_may_be_is_no_gain() -> None:
    """Three rounds that are better by less than the error end a study of that patience; one clear gain keeps it."""
    slow = [0.1, 0.5, 0.51, 0.515, 0.517]
    assert not followed(slow).stalled(4)
    assert followed(slow).stalled(3)
    assert not followed([*slow[:-1], 0.6]).stalled(3)
    assert not followed(slow).stalled(0)


def test_a_round_without_a_figure_says_nothing() -> None:
    assert not followed([0.5, None, None, None]).stalled(3)
    assert followed([]).best is None


def test_a_loss_is_better_where_it_is_smaller() -> None:
    progress = Progress(False)
    for round_, loss in enumerate([2.0, 1.0, 1.5], 1):
        progress.note(round_, None, loss, {})
    assert progress.best is not None
    assert (progress.best.round, progress.best.name) == (2, "loss")
    assert progress.stalled(1)
    assert not progress.stalled(2)
