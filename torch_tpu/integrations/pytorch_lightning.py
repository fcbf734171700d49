"""Lightning under its older name; see lightning.py here."""

from torch_tpu.integrations.lightning import patches

PATCHES = patches("pytorch_lightning", "lightning_fabric")
