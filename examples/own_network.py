"""Your own network as a learner: class means of the features that any torch module makes."""

import torch

import cfsl


class NearestMean:
    def __init__(self, net):
        self.net = net  # trained in any way you like

    def begin(self, meta, info):
        features = self.net(torch.zeros(1, *info.image_shape))
        return torch.zeros(info.labels, features.shape[1])

    def observe(self, sums, support):  # the state is all that reaches the next support set
        return sums.index_add(0, support.labels, self.net(support.images))

    def predict(self, sums, images):
        return self.net(images) @ torch.nn.functional.normalize(sums, dim=1).T


net = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 5, 2), torch.nn.ReLU(), torch.nn.Flatten())
tasks = cfsl.Tasks(cfsl.load("glyphs"), cfsl.TaskSpec.type_b(nss=3), numbers=range(100))
trace = cfsl.evaluate(NearestMean(net), tasks)
accuracy = cfsl.summarise(cfsl.task_accuracies(trace))
print(f"{accuracy.mean:.3f} +- {accuracy.ci95:.3f}, ATM {cfsl.atm(trace).total:.2f}")
