"""Errors of an evaluation on Ray before Ray starts."""

import math

import pytest

from jaxdelegate.errors import OptionError
from jaxdelegate.ray.evaluation import RayRunner
from jaxdelegate.tools.main import main


def test_flags_without_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model_file=m", "--ground_truth_images_path=i", "--model_output_labels=l"]
    assert main(["imagenet_eval", *given, "--ray_actors=2"]) == 1
    assert "--ray_actors needs --ray_address" in capsys.readouterr().err


def test_impossible_numbers_of_a_cluster() -> None:
    for wrong in ({"actors": 0}, {"cpus": 0.0}, {"cpus": math.nan}, {"gpus": 2.0}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))}: "):
            RayRunner({}, address="local", **wrong)  # type: ignore[arg-type]
