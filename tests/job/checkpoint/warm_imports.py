"""All that a rank imports, as `python -W error` would; see `gang_launch`. For a process that ranks are forked from."""

import os
import warnings

warnings.simplefilter("error")
os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # torch reads the first when it is imported

import gc  # noqa: E402
import importlib  # noqa: E402

gc.disable()
for name in ("finish", "loop", "recover", "setup", "snapshots", "warm"):
    importlib.import_module(f"phalanx.job.train.{name}")
importlib.import_module("torch._dynamo")  # torch imports it late, at a parameter's first values
gc.freeze()  # else a rank's first collection copies every page of them
gc.enable()
