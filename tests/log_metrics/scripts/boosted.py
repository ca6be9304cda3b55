"""Boosted models, which print a line a round: XGBoost, LightGBM, CatBoost."""

import sys

import numpy
from truth import Truth

truth = Truth()
random = numpy.random.default_rng(0)
inputs = random.normal(size=(400, 5))
wanted = 2 * inputs[:, 0] + random.normal(size=400)
TRAIN, VALID = slice(0, 300), slice(300, 400)


def write(rounds, train, valid, **more):
    for index in rounds:
        truth.write(index, loss=train[index], eval_loss=valid[index], **{name: values[index] for name, values in more.items()})


def xgboost():
    import xgboost

    results = {}
    train, valid = xgboost.DMatrix(inputs[TRAIN], wanted[TRAIN]), xgboost.DMatrix(inputs[VALID], wanted[VALID])
    xgboost.train({"eval_metric": ["rmse", "mae"]}, train, 22, [(train, "train"), (valid, "eval")], verbose_eval=5,
                  evals_result=results)
    shown = {place: [float(f"{value:.5f}") for value in metrics["rmse"]] for place, metrics in results.items()}
    mae = [float(f"{value:.5f}") for value in results["eval"]["mae"]]
    write([*range(0, 22, 5), 21], shown["train"], shown["eval"], eval_mae=mae)


def lightgbm():
    import lightgbm

    results = {}
    train = lightgbm.Dataset(inputs[TRAIN], wanted[TRAIN])
    valid = lightgbm.Dataset(inputs[VALID], wanted[VALID], reference=train)
    lightgbm.train({"metric": "l2"}, train, 20, [train, valid],
                   callbacks=[lightgbm.log_evaluation(4), lightgbm.record_evaluation(results)])
    shown = {place: [None, *(float(f"{value:g}") for value in metrics["l2"])] for place, metrics in results.items()}
    write(range(4, 21, 4), shown["training"], shown["valid_1"])


def catboost():
    import catboost

    model = catboost.CatBoostRegressor(iterations=20, metric_period=3, allow_writing_files=False)
    model.fit(inputs[TRAIN], wanted[TRAIN], eval_set=(inputs[VALID], wanted[VALID]))
    losses = [[float(f"{value:.7f}") for value in metrics["RMSE"]] for metrics in model.get_evals_result().values()]
    # The history holds the rounds that were printed.
    rounds = [*range(0, 20, 3), 19]
    for place, index in enumerate(rounds):
        truth.write(index, loss=losses[0][place], eval_loss=losses[1][place])


{"xgboost": xgboost, "lightgbm": lightgbm, "catboost": catboost}[sys.argv[1]]()
