"""In the manner of Horovod's example of this name, for TensorFlow 2, with its calls; fewer epochs."""

import math
import sys

import horovod.keras as hvd
import keras
import tensorflow as tf
from keras import backend as K
from keras.datasets import mnist
from keras.layers import Conv2D, Dense, Dropout, Flatten, MaxPooling2D
from keras.models import Sequential

hvd.init()

gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

epochs = math.ceil(12.0 / hvd.size())
(x_train, y_train), (x_test, y_test) = mnist.load_data()
shape = (1, 28, 28) if K.image_data_format() == "channels_first" else (28, 28, 1)
x_train = x_train.reshape(len(x_train), *shape).astype("float32") / 255
x_test = x_test.reshape(len(x_test), *shape).astype("float32") / 255
y_train, y_test = keras.utils.to_categorical(y_train, 10), keras.utils.to_categorical(y_test, 10)

model = Sequential()
model.add(Conv2D(16, kernel_size=(3, 3), activation="relu", input_shape=shape))
model.add(MaxPooling2D(pool_size=(2, 2)))
model.add(Dropout(0.25))
model.add(Flatten())
model.add(Dense(64, activation="relu"))
model.add(Dense(10, activation="softmax"))

if "--legacy" in sys.argv:
    from keras.optimizers import legacy as optimizers
else:
    from keras import optimizers
opt = optimizers.Adadelta(1.0 * hvd.size())
opt = hvd.DistributedOptimizer(opt)
model.compile(
    loss=keras.losses.categorical_crossentropy,
    optimizer=opt,
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)

callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))
model.fit(
    x_train,
    y_train,
    batch_size=128,
    callbacks=callbacks,
    epochs=epochs,
    verbose=1 if hvd.rank() == 0 else 0,
    validation_data=(x_test, y_test),
)
score = model.evaluate(x_test, y_test, verbose=0)
print(f"Test loss: {score[0]:.5f} accuracy: {score[1]:.5f}")
