"""The comments of a new suite file, and what stands in it in the place of parts that are not known yet."""

HEADER = """\
# A suite for flatfold: networks, and the images on which methods are judged. Paths start from the folder of this file,
# and $NAME is an environment variable. `flatfold doctor` says what is missing, `flatfold bench` judges.
"""
TITLES = {
    "transform": "# What happens to every image before a network sees it: the same as in its validation.",
    "network": "# Any number of networks, each judged on the same images.",
    "train": "# Known images that the network was trained with. Methods that learn from them need them.",
    "val": "# Known images, with labels, that the network was not trained with: some methods learn from them.",
    "test": "# Known images, with labels, that methods are judged on.",
    "ood_val": "# Unknown images by which methods choose a setting when asked to, as in knn@ood. None is judged.",
    "ood": "# Unknown images that methods are judged on: near ones look like the known ones, far ones do not.",
}
SIZES = {
    False: """\
# resize = 256  # the shorter side, in pixels
# crop = 224  # a square from the middle""",
    True: """\
# Images of different sizes need a resize and a crop, which make them one.
# resize = 256  # the shorter side, in pixels
# crop = 224  # a square from the middle""",
}
NORMALISATION = {
    False: """\
# mean = [0.485, 0.456, 0.406]  # per channel, of values from 0 to 1
# std = [0.229, 0.224, 0.225]
# mode = "L"  # for a network that takes grey images; all become RGB if nothing is said""",
    True: """\
# All known images are grey. They become RGB unless the network takes grey ones:
# mode = "L"
# mean = [0.5]  # per channel, of values from 0 to 1
# std = [0.25]""",
}
_FOLDER = '# folder = "{}"  # one sub-folder per class; or npz = , table = , or list = with images ='
_MIXED = '# folder = "{}"  # in any sub-folders; or npz = , table = , or list = with images ='
EXAMPLES = {
    "transform": TITLES["transform"],
    "network": f"""\
{TITLES["network"]}
# [[network]]
# name = "mine"
# factory = "my_networks:make"  # package.module:function without arguments; a file beside this one will do
# model = "torchvision/resnet50"  # or, in its place, a network of openood, torchvision, timm or transformers
# weights = "mine.safetensors"  # a state dict, of safetensors or torch.save""",
    "train": f"{TITLES['train']}\n# [train]\n{_FOLDER.format('train')}",
    "val": f"{TITLES['val']}\n# [val]\n{_FOLDER.format('val')}",
    "test": f"{TITLES['test']}\n# [test]\n{_FOLDER.format('test')}",
    "ood_val": f"{TITLES['ood_val']}\n# [ood_val]\n{_MIXED.format('more-unknown')}",
    "ood": f"""\
{TITLES["ood"]}
# [[ood]]
# name = "strange"
# group = "far"  # or "near"
{_MIXED.format("strange")}""",
}
WEIGHTS = {
    "factory": '# weights = "mine.safetensors"  # a state dict, unless the function loads its own',
    "model": """\
# weights = "mine.safetensors"  # a state dict, or else
# pretrained = "DEFAULT"  # those that the library publishes, which are downloaded""",
}
