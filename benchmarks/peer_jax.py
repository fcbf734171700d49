"""The MLP and GPT steps of workloads.py as JAX jit functions, in an environment of their own.

A child of bench.py: reads lines "<workload> <steps>", answers with the seconds those steps took.
"""

import sys
import time

import jax
import jax.numpy as jnp


def mlp():
  width, batch = 256, 32
  keys = jax.random.split(jax.random.key(0), 5)
  params = [(jax.random.normal(k, (width, width)) / 16, jnp.zeros(width)) for k in keys[:3]]
  x, y = (jax.random.normal(k, (batch, width)) for k in keys[3:])

  def loss(params):
    h = x
    for weight, bias in params[:-1]:
      h = jax.nn.relu(h @ weight.T + bias)
    weight, bias = params[-1]
    return jnp.mean((h @ weight.T + bias - y) ** 2)

  return params, loss, dict(rate=1e-3, decay=lambda p: 0.0, clip=None)


def gpt(layers=6, width=128, heads=4, context=128, vocab=256, batch=4):
  keys = iter(jax.random.split(jax.random.key(0), 64))

  def normal(*shape):
    return 0.02 * jax.random.normal(next(keys), shape)

  def norm():
    return jnp.ones(width), jnp.zeros(width)

  def linear(n_in, n_out):
    return normal(n_out, n_in), jnp.zeros(n_out)

  params = {
    "tokens": normal(vocab, width),
    "positions": normal(context, width),
    "norm": norm(),
    "blocks": [
      {
        "norm1": norm(),
        "qkv": linear(width, 3 * width),
        "out": linear(width, width),
        "norm2": norm(),
        "up": linear(width, 4 * width),
        "down": linear(4 * width, width),
      }
      for _ in range(layers)
    ],
  }
  ids = jax.random.randint(next(keys), (batch, context + 1), 0, vocab)

  def apply_norm(p, x):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[0] + p[1]

  def apply_linear(p, x):
    return x @ p[0].T + p[1]

  def attention(block, x):
    parts = apply_linear(block["qkv"], x).reshape(batch, context, 3, heads, width // heads)
    q, k, v = (parts[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    scores = q @ k.transpose(0, 1, 3, 2) / (width // heads) ** 0.5
    mask = jnp.tril(jnp.ones((context, context), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
    y = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, context, width)
    return apply_linear(block["out"], y)

  def loss(params):
    x = params["tokens"][ids[:, :-1]] + params["positions"]
    for block in params["blocks"]:
      x = x + attention(block, apply_norm(block["norm1"], x))
      h = jax.nn.gelu(apply_linear(block["up"], apply_norm(block["norm2"], x)), approximate=False)
      x = x + apply_linear(block["down"], h)
    logits = jax.nn.log_softmax(apply_norm(params["norm"], x) @ params["tokens"].T)
    return -jnp.take_along_axis(logits, ids[:, 1:, None], 2).mean()

  return params, loss, dict(rate=1e-3, decay=lambda p: 0.1 if p.ndim >= 2 else 0.0, clip=1.0)


def make_step(params, loss, rate, decay, clip):
  """One jitted AdamW step with donated state; returns a function that runs it once."""

  def update(state, rate):
    params, first, second, count = state
    value, grads = jax.value_and_grad(loss)(params)
    if clip is not None:
      total = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
      grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, clip / (total + 1e-6)), grads)
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, second, grads)

    def move(p, m, v):
      step = (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.95**count)) + 1e-8)
      return p * (1 - rate * decay(p)) - rate * step

    return (jax.tree.map(move, params, first, second), first, second, count), value

  update = jax.jit(update, donate_argnums=0)
  zeros = jax.tree.map(jnp.zeros_like, params)
  state = [(params, zeros, jax.tree.map(jnp.zeros_like, params), jnp.float32(0))]

  def step():
    state[0], value = update(state[0], rate)
    return float(value)

  return step


def main():
  steps = {}
  for line in sys.stdin:
    name, count = line.split()
    if name not in steps:
      steps[name] = make_step(
        *(lambda p, f, o: (p, f, *o.values()))(*{"mlp": mlp, "gpt": gpt}[name]())
      )
      steps[name]()
    start = time.perf_counter()
    for _ in range(int(count)):
      steps[name]()
    print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
  main()
