"""DeepXDE's Poisson equation on a line, as in its examples: a network learns sin(pi x) from its second derivative."""

import deepxde as dde
import numpy as np
from deepxde.backend import tf

dde.config.set_random_seed(3)
line = dde.geometry.Interval(-1, 1)


def pde(x, y):
    """The equation, as what must be zero."""
    return -dde.grad.hessian(y, x) - np.pi**2 * tf.sin(np.pi * x)


ends = dde.icbc.DirichletBC(line, lambda x: 0, lambda x, on_boundary: on_boundary)
data = dde.data.PDE(line, pde, ends, 32, 2, train_distribution="pseudo", num_test=100)
model = dde.Model(data, dde.nn.FNN([1, 20, 20, 1], "tanh", "Glorot uniform"))
model.compile("adam", lr=5e-3)
model.train(iterations=1500, display_every=500)
x = np.linspace(-1, 1, 101)[:, None]
print("RESULT", dde.config.world_size, float(np.abs(model.predict(x) - np.sin(np.pi * x)).max()), flush=True)
