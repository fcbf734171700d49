import torch  # loads the device; nothing else to import

x = torch.randn(64, 64, device="tpu")
w = torch.randn(64, 64, device="tpu", requires_grad=True)
loss = torch.relu(x @ w).square().mean()  # recorded, not run yet
loss.backward()
print(loss.item(), w.grad.norm().item())  # here it is run; what repeats is compiled
print(torch.tpu.get_device_name(), torch.tpu.eager_mode)
print(torch.tpu.compile_stats())
