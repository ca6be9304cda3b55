import argparse


class ConfigSanitizer:
    pass


def main():
    unrelated = argparse.ArgumentParser()
    unrelated.add_argument("--support_dreambooth", action="store_true")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset_config")
    parser.add_argument("--batch", type=int, default=99)
    parser.parse_args()
