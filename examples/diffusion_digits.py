"""Trains a small diffusion model of handwritten digits with Diffusers, then draws some.

    python examples/diffusion_digits.py                 # device "tpu"
    python examples/diffusion_digits.py --device cpu    # PyTorch's own CPU kernels, for comparison

Needs what requirements/ecosystem.txt names: make test-ecosystem puts it into .venv-ecosystem.
The images are scikit-learn's 1,797 digits of 8x8 pixels. Writes to --out: loss.csv, loss.png and
digits.png.
"""

import argparse
import pathlib

import torch
import torch.nn.functional as F
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from sklearn.datasets import load_digits
from tqdm import tqdm
from train_gpt import save_losses


def load_images():
  """float32[1797, 1, 8, 8] in [-1, 1]."""
  return torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1


def make_model():
  return UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    block_out_channels=(32, 64),
    layers_per_block=1,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    norm_num_groups=8,
    attention_head_dim=16,
  )


def train(model, scheduler, images, args):
  """The losses, one a step."""
  optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
  schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=args.steps)
  losses = []
  model.train()
  for _ in tqdm(range(args.steps), disable=None):
    clean = images[torch.randint(len(images), (args.batch,), device=images.device)]
    noise = torch.randn_like(clean)
    times = torch.randint(scheduler.config.num_train_timesteps, (args.batch,), device=images.device)
    noisy = scheduler.add_noise(clean, noise, times)
    loss = F.mse_loss(model(noisy, times).sample, noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.detach())
  return torch.stack(losses).tolist()  # the only time that the host waits


def save_images(path, images):
  """A row of PIL images as one picture, enlarged."""
  from PIL import Image

  size = 64
  row = Image.new("L", (size * len(images), size))
  for place, image in enumerate(images):
    row.paste(image.convert("L").resize((size, size), Image.Resampling.NEAREST), (place * size, 0))
  row.save(path)


def parse_args():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--device", default="tpu", choices=["tpu", "cpu"])
  parser.add_argument("--steps", type=int, default=300)
  parser.add_argument("--batch", type=int, default=64)
  parser.add_argument("--draw", type=int, default=8, help="how many digits to draw")
  parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/digits"))
  return parser.parse_args()


def main():
  args = parse_args()
  torch.manual_seed(1)
  images, model = load_images().to(args.device), make_model().to(args.device)
  scheduler = DDPMScheduler(num_train_timesteps=100, beta_schedule="squaredcos_cap_v2")
  count = sum(parameter.numel() for parameter in model.parameters())
  print(f"device:   {images.device}, {count:,} parameters, {len(images):,} images")
  losses = train(model, scheduler, images, args)
  tail = losses[-len(losses) // 10 :]
  print(f"loss:     {losses[0]:.3f} -> {sum(tail) / len(tail):.3f}")

  args.out.mkdir(parents=True, exist_ok=True)
  save_losses(args.out, losses, f"Diffusion of digits on {images.device}", "mean square")
  pipeline = DDPMPipeline(unet=model.eval(), scheduler=scheduler)
  pipeline.set_progress_bar_config(disable=True)
  drawn = pipeline(batch_size=args.draw, num_inference_steps=50).images
  save_images(args.out / "digits.png", drawn)
  print(f"drawn:    {args.out / 'digits.png'}")


if __name__ == "__main__":
  main()
