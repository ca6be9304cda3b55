"""Lines in the forms of toolkits for speech, translation, text, graphs and pictures. Needs Python alone.

The forms are those of public logs of each project; the numbers are made up.
"""

import random
import sys

from truth import Truth

truth = Truth()
random.seed(0)
EPOCHS, BATCHES = 3, 6


def number(digits=3, least=0.1, most=3.0):
    return round(random.uniform(least, most), digits)


def espnet():
    """ESPnet 2: a range of batches, the last ones of an epoch unprinted; its end tells how many there were."""
    for epoch in range(1, EPOCHS + 1):
        at = f"[node1] 2026-03-01 12:0{epoch}:00,123"
        for last in (2, 4):
            loss, accuracy, rate = number(), number(3, 0, 1), 2e-5
            print(f"{at} (trainer:740) INFO: {epoch}epoch:train:{last - 1}-{last}batch: iter_time=0.112, forward_time=0.512, "
                  f"loss_ctc=150.1, acc={accuracy}, loss={loss}, backward_time=0.3, grad_norm=12.5, clip=100.0, loss_scale=1.0, "
                  f"optim0_lr0={rate}, train_time=2.3")
            truth.write((epoch - 1) * BATCHES + last, loss=loss, accuracy=accuracy, epoch=epoch)
        loss, accuracy = number(), number(3, 0, 1)
        print(f"{at} (trainer:338) INFO: {epoch}epoch results: [train] iter_time=0.1, loss_ctc=140.1, acc=0.4, loss=3.1, "
              f"train_time=1.2, time=12 minutes and 3.1 seconds, total_count={epoch * BATCHES}, gpu_max_cached_mem_GB=12.3, "
              f"[valid] loss_ctc=90.1, acc={accuracy}, loss={loss}, time=1 minute and 3 seconds, total_count={epoch * 2}, "
              "gpu_max_cached_mem_GB=12.3")
        truth.write(epoch * BATCHES, loss=3.1, accuracy=0.4, eval_loss=loss, eval_accuracy=accuracy, epoch=epoch)


def marian():
    """Marian: updates of the whole training."""
    for update in range(10, 70, 10):
        epoch, loss = 1 + update // 40, number(8)
        print(f"[2026-03-01 12:00:{update}] Ep. {epoch} : Up. {update} : Sen. {update},112 : Cost {loss:.8f} * 81,000 @ 1,234 "
              f"after 1,620,000 : Time 12.34s : 20345.60 words/s : gNorm 1.25 : L.r. 3.0000e-05")
        truth.write(update, loss=loss, lr=3e-5, grad_norm=1.25, epoch=epoch)
        if update % 30 == 0:
            loss = number(4)
            print(f"[2026-03-01 12:00:{update}] [valid] Ep. {epoch} : Up. {update} : cross-entropy : {loss} : new best")
            truth.write(update, eval_loss=loss)


def opennmt():
    """OpenNMT-py: the loss is called xent, accuracies are percentages."""
    for step in range(50, 350, 50):
        accuracy, loss = number(2, 2, 90), number(2)
        print(f"[2026-03-01 12:00:00,123 INFO] Step {step}/100000; acc: {accuracy:5.2f}; ppl: 12.5; xent: {loss:4.2f}; lr: 0.00050; "
              f"sents:   12345; bsz: 3456/3000/120; 12345/12345 tok/s;     21 sec;")
        truth.write(step, loss=loss, lr=0.0005, perplexity=12.5, total_steps=100000)
    print("[2026-03-01 12:05:00,123 INFO] Validation perplexity: 40.5")
    truth.write(step, eval_perplexity=40.5)


def darknet():
    """Darknet: a mean loss behind its number, between the readings of each layer."""
    for step in range(1, 8):
        print("v3 (iou loss, Normalizer: (iou: 0.07, obj: 1.00, cls: 1.00) Region 139 Avg (IOU: 0.501, GIOU: 0.401), "
              "count: 5, class_loss = 0.812, iou_loss = 0.612, total_loss = 1.424")
        loss = number(6)
        print(f" {step}: {loss + 1:.6f}, {loss:.6f} avg loss, 0.001000 rate, 3.212345 seconds, {step * 64} images, 5.1 hours left")
        truth.write(step, loss=loss, lr=0.001)


def monai():
    """MONAI's tutorials: a fraction before a comma, below the line of the epoch."""
    for epoch in range(1, EPOCHS + 1):
        print(f"----------\nepoch {epoch}/{EPOCHS}")
        for step in range(1, BATCHES + 1):
            loss = number(4)
            print(f"{step}/{BATCHES}, train_loss: {loss:.4f}")
            truth.write((epoch - 1) * BATCHES + step, loss=loss)
        print(f"epoch {epoch} average loss: {number():.4f}")


def gluon():
    """GluonCV: the batch in a second bracket, an accuracy and no loss."""
    for step in range(50, 400, 50):
        accuracy, epoch = number(6, 0, 1), step // 150
        print(f"INFO:root:[Epoch {epoch}][Batch {step}] Speed: 120.1 samples/sec\taccuracy={accuracy:.6f}\tlr=0.1")
        truth.write(step, accuracy=accuracy, lr=0.1, epoch=epoch)


def geometric():
    """PyTorch Geometric's examples: scores of each part of the data, epochs alone."""
    for epoch in range(1, 8):
        loss, train, val, test = number(4), number(4, 0, 1), number(4, 0, 1), number(4, 0, 1)
        print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Train: {train:.4f}, Val: {val:.4f}, Test: {test:.4f}")
        truth.write_epoch(epoch, loss=loss, train_score=train, eval_score=val, eval_test_score=test)


def spacy():
    """spaCy: a table whose first columns are E and #."""
    print("E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  ENTS_P  ENTS_R  SCORE ")
    print("---  ------  ------------  --------  ------  ------  ------  ------")
    for step in range(0, 1400, 200):
        first, second, score = number(2), number(2), number(2, 0, 1)
        print(f"{step // 600:3d}  {step:6d}  {first:12.2f}  {second:8.2f}  {40.1:6.2f}  {50.0:6.2f}  {40.0:6.2f}  {score:6.2f}")
        truth.write(step, loss=first + second, loss_tok2vec=first, loss_ner=second, score=score, epoch=step // 600)


def yolox():
    """YOLOX: loguru names the module and the line."""
    for epoch in range(1, EPOCHS + 1):
        for step in range(2, BATCHES + 1, 2):
            loss = number(1)
            print(f"2026-08-19 07:23:36 | INFO     | yolox.core.trainer:250 - epoch: {epoch}/{EPOCHS}, iter: {step}/{BATCHES}, "
                  f"mem: 5000Mb, iter_time: 0.301s, data_time: 0.001s, total_loss: {loss}, iou_loss: 4.5, lr: 1.000e-06, "
                  f"size: 640, ETA: 1:02:03")
            truth.write((epoch - 1) * BATCHES + step, loss=loss, iou_loss=4.5, lr=1e-6, epoch=epoch)


FORMS = {form.__name__: form for form in [espnet, marian, opennmt, darknet, monai, gluon, geometric, spacy, yolox]}
FORMS[sys.argv[1]]()
