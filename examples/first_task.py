"""Task number 17 of type D, as tensors and as a picture."""

import cfsl

data = cfsl.load("glyphs")
spec = cfsl.TaskSpec.type_d(nss=4, cci=2)
task = cfsl.Tasks(data, spec, split="test")[17]
print(
    [tuple(support.images.shape) for support in task.support_sets], tuple(task.target.images.shape)
)
cfsl.draw_task(task).save("task17.png")
