"""`kiln.testing`: what test programs share."""

from __future__ import annotations

import argparse

import pytest

from kiln import testing


def test_options_of_test_programs(capsys: pytest.CaptureFixture[str]):
    parser = argparse.ArgumentParser()
    testing.add_tensor_init_args(parser)
    args = parser.parse_args(["--init_normal", "--normal_std", "2"])
    testing.validate_tensor_init_args(args, parser)
    assert (args.init_normal, args.normal_mean, args.normal_std) == (True, 0.0, 2.0)
    with pytest.raises(SystemExit):
        testing.validate_tensor_init_args(parser.parse_args(["--init_normal", "--normal_std", "0"]), parser)
    assert "positive" in capsys.readouterr().err
