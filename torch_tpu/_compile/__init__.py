"""torch.compile on "tpu". Imported when something is compiled, never by `import torch`.

Dynamo hands a graph to the backend (backend.py), AOTAutograd turns it into ATen calls, and a
callable (graph.py) runs them through the same recorder as eager. routing.py sends graphs with tpu
tensors here when the caller named no backend.
"""
