"""``fedlsg pretrain``: a feature extractor trained on public inputs alone, as initial weights of any run.

views    random changes of images that keep what they show
tasks    what is learnt without labels: which two views are of one image
train    the loop: a function of the model, the images, the task and the seed
command  from words to a folder with model.safetensors and config.json

After DP-RandP (Tang, Panda, Sehwag and Mittal 2023, "Differentially Private Image Classification by Learning Priors
from Random Processes"): images of a random process cost no privacy.
"""
