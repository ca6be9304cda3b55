"""Lines in the forms of trainers that print a step without a word for it, or no step at all. Needs Python alone.

The forms are those of public logs of each project; the numbers are made up.
"""

import random
import sys

from truth import Truth

truth = Truth()
random.seed(0)
EPOCHS, BATCHES = 3, 6


def number(digits=4, least=0.1, most=3.0):
    return round(random.uniform(least, most), digits)


def tutorial():
    """pytorch/examples word_language_model: the last batches of an epoch go unprinted."""
    for epoch in range(1, EPOCHS + 1):
        for batch in range(2, BATCHES, 2):
            loss, ppl = number(2), number(2, 1, 99)
            print(f"| epoch {epoch:3d} | {batch:5d}/{BATCHES:5d} batches | lr {20.0:02.2f} | ms/batch {5.58:5.2f} | "
                  f"loss {loss:5.2f} | ppl {ppl:8.2f}")
            truth.write((epoch - 1) * BATCHES + batch, loss=loss, perplexity=ppl, lr=20.0, epoch=epoch)
        loss, ppl = number(2), number(2, 1, 99)
        print("-" * 89)
        print(f"| end of epoch {epoch:3d} | time: {1.05:5.2f}s | valid loss {loss:5.2f} | valid ppl {ppl:8.2f}")
        print("-" * 89)
        truth.write((epoch - 1) * BATCHES + BATCHES - 2, eval_loss=loss, eval_perplexity=ppl)
    loss, ppl = number(2), number(2, 1, 99)
    print(f"{'=' * 89}\n| End of training | test loss {loss:5.2f} | test ppl {ppl:8.2f}\n{'=' * 89}")
    truth.write((EPOCHS - 1) * BATCHES + BATCHES - 2, eval_test_loss=loss, eval_test_perplexity=ppl)


def imagenet():
    """pytorch/examples imagenet: epochs and batches count from 0 and from 1, a mean in parentheses, an evaluation in parts."""
    print("=> creating model 'resnet18'\nusing CPU, this will be slow")
    for epoch in range(EPOCHS):
        for batch in range(1, BATCHES + 1):
            loss, first, fifth = number(), number(2, 0, 99), number(2, 0, 99)
            print(f"Epoch: [{epoch}][{batch:2d}/{BATCHES}]\tTime {0.5:6.3f} ({0.6:6.3f})\tData {0.1:6.3f} ({0.1:6.3f})\t"
                  f"Loss {loss:.4e} ({loss + 1:.4e})\tAcc@1 {first:6.2f} ({50:6.2f})\tAcc@5 {fifth:6.2f} ({60:6.2f})")
            truth.write(epoch * BATCHES + batch, loss=float(f"{loss:.4e}"), accuracy=first / 100, accuracy_top5=fifth / 100,
                        epoch=epoch)
        mean = number()
        for batch in range(1, 5):
            mean, first, fifth = number(), number(2, 0, 99), number(2, 0, 99)
            print(f"Test: [{batch:2d}/4]\tTime {0.5:6.3f} ({0.6:6.3f})\tLoss {mean + 1:.4e} ({mean:.4e})\t"
                  f"Acc@1 {1:6.2f} ({first:6.2f})\tAcc@5 {2:6.2f} ({fifth:6.2f})")
        print(f" *   Acc@1 {first:.3f} Acc@5 {fifth:.3f}")
        truth.write((epoch + 1) * BATCHES, eval_loss=float(f"{mean:.4e}"), eval_accuracy=first / 100,
                    eval_accuracy_top5=fifth / 100)


def metric_logger():
    """torchvision/references: a step in a second bracket, and the sums of each epoch."""
    for epoch in range(EPOCHS):
        for batch in range(0, BATCHES, 2):
            loss, lr = number(), number(6, 0, 0.01)
            print(f"Epoch: [{epoch}]  [{batch}/{BATCHES}]  eta: 0:00:0{BATCHES - batch}  lr: {lr:.6f}  "
                  f"loss: {loss:.4f} ({loss + 1:.4f})  loss_box_reg: 0.5 (0.5)  time: 0.98  data: 0.3  max mem: 2547")
            truth.write(epoch * BATCHES + batch, loss=loss, lr=lr, epoch=epoch)
        print(f"Epoch: [{epoch}] Total time: 0:00:05 (0.9880 s / it)")
        print("Test:  [0/2]  eta: 0:00:01  model_time: 0.1 (0.1)  evaluator_time: 0.01 (0.01)  time: 0.2  data: 0.1")
        print("Test: Total time: 0:00:01 (0.5 s / it)")


def timm():
    """huggingface/pytorch-image-models train.py."""
    for epoch in range(EPOCHS):
        for batch in (0, 2, BATCHES - 1):
            loss, lr = number(), number(6, 0, 0.01)
            print(f"Train: {epoch} [{batch:>4d}/{BATCHES} ({100 * batch / (BATCHES - 1):>3.0f}%)]  Loss: {loss:#.3g} ({3:#.3g})  "
                  f"Time: 1.663s,    9.62/s  (1.663s,    9.62/s)  LR: {lr:.3e}  Data: 0.460 (0.460)")
            truth.write(epoch * BATCHES + batch, loss=float(f"{loss:#.3g}"), lr=float(f"{lr:.3e}"), epoch=epoch)
        for batch in (0, 3):
            mean, first, fifth = number(), number(3, 0, 99), number(3, 0, 99)
            print(f"Test: [{batch:>4d}/3]  Time: 0.560 (0.560)  Loss: {9:>7.3f} ({mean:>6.3f})  "
                  f"Acc@1: {1:>7.3f} ({first:>7.3f})  Acc@5: {2:>7.3f} ({fifth:>7.3f})")
        print(f"Current checkpoints:\n ('./output/train/checkpoint-{epoch}.pth.tar', {first})\n")
        truth.write(epoch * BATCHES + BATCHES - 1, eval_loss=float(f"{mean:.3f}"), eval_accuracy=first / 100,
                    eval_accuracy_top5=fifth / 100)


def batches():
    """A plain loop: `Epoch 2/3, Batch 3/5`."""
    for epoch in range(1, EPOCHS + 1):
        for batch in range(1, BATCHES + 1):
            loss = number()
            print(f"Epoch {epoch}/{EPOCHS}, Batch {batch}/{BATCHES}, Loss: {loss:.4f}")
            truth.write((epoch - 1) * BATCHES + batch, loss=loss, epoch=epoch, total_steps=EPOCHS * BATCHES)
        right = random.randint(0, 200)
        print(f"Accuracy: {right}/200 ({100 * right / 200:.0f}%)")
        truth.write(epoch * BATCHES, eval_accuracy=right / 200)


def mmengine():
    """open-mmlab/mmengine LogProcessor, by epochs."""
    at = "2022/08/22 15:51:57 - mmengine - INFO - "
    print(at + "Checkpoints will be saved to /data/work_dirs.")
    for epoch in range(1, EPOCHS + 1):
        for batch in range(2, BATCHES + 1, 2):
            loss, lr, norm = number(), number(6, 0, 0.01), number()
            print(f"{at}Epoch(train)  [{epoch}][{batch:>2}/{BATCHES}]  lr: {lr:.4e}  eta: 0:07:17  time: 0.0347  "
                  f"data_time: 0.0073  memory: 392  grad_norm: {norm:.4f}  loss: {loss:.4f}  loss_cls: {loss / 2:.4f}")
            truth.write((epoch - 1) * BATCHES + batch, loss=loss, lr=float(f"{lr:.4e}"), grad_norm=norm, epoch=epoch)
        print(f"{at}Saving checkpoint at {epoch} epochs")
        for batch in (1, 2, 3):
            print(f"{at}Epoch(val)  [{epoch}][{batch}/4]    eta: 0:00:03  time: 0.0122  data_time: 0.0047  memory: 392")
        accuracy = number(4, 0, 99)
        print(f"{at}Epoch(val) [{epoch}][4/4]  accuracy: {accuracy:.4f}  data_time: 0.0047  time: 0.0122")
        truth.write(epoch * BATCHES, eval_accuracy=accuracy / 100)


def mmengine_iterations():
    """open-mmlab/mmengine LogProcessor, by iterations, as mmsegmentation uses it."""
    at = "08/22 15:51:57 - mmengine - INFO - "
    for step in range(10, 41, 10):
        loss, lr = number(), number(6, 0, 0.01)
        print(f"{at}Iter(train) [{step:>5}/   40]  base_lr: {lr:.4e} lr: {lr:.4e}  eta: 1 day, 7:17:00  time: 0.3  loss: {loss:.4f}")
        truth.write(step, loss=loss, lr=float(f"{lr:.4e}"), total_steps=40)
        if step % 20 == 0:
            print(f"{at}Iter(val) [ 50/100]    eta: 0:00:03  time: 0.0122  data_time: 0.0047  memory: 392")
            miou = number(4, 0, 99)
            print(f"{at}Iter(val) [100/100]    aAcc: 77.4900  mIoU: {miou:.4f}  mAcc: 42.0600  data_time: 0.0047  time: 0.0122")
            truth.write(step, eval_miou=miou)


def litgpt():
    """Lightning-AI/litgpt finetune: two micro-batches a step, and the words of a loss turned round."""
    for i in range(1, 13):
        epoch, step, loss = 1 + (i - 1) // 6, i // 2, number(3)
        mark = " (step)" if i % 2 == 0 else ""
        val = f"{number(3):.3f}" if i > 6 else "n/a"
        print(f"Epoch {epoch} | iter {i} step {step} | loss train: {loss:.3f}, val: {val} | iter time: 548.72 ms{mark}")
        if mark:
            truth.write(step, loss=loss, epoch=epoch)


def speechbrain():
    """speechbrain FileTrainLogger: one line an epoch."""
    for epoch in range(1, EPOCHS + 1):
        lr, train, valid, wer = number(2, 0, 1), number(2), number(2), number(2, 1, 99)
        print(f"speechbrain.utils.checkpoints - Saved an end-of-epoch checkpoint in results/save/CKPT+2026-11-22+10-00-0{epoch}+00")
        print(f"speechbrain.utils.train_logger - epoch: {epoch}, lr: {lr:.2e} - train loss: {train:.2f} - valid loss: {valid:.2f}, "
              f"valid WER: {wer:.2f}")
        truth.write_epoch(epoch, loss=train, lr=lr, eval_loss=valid, eval_wer=wer)
    print(f"speechbrain.utils.train_logger - Epoch loaded: {EPOCHS} - test loss: 9.00, test WER: 90.00")


def detectron2():
    """facebookresearch/detectron2 CommonMetricPrinter."""
    at = "[11/24 17:17:38 d2.utils.events]:  "
    print("[11/24 17:17:00 d2.engine.train_loop]: Starting training from iteration 0")
    for step in range(19, 100, 20):
        loss, lr = number(3), number(8, 0, 0.001)
        eta = "1 day, 11:14:26" if step < 40 else "0:03:49"
        print(f"{at}eta: {eta}  iter: {step}  total_loss: {loss}  loss_cls: 1.709  loss_box_reg: 0.001663  loss_rpn_loc: 1.211  "
              f"time: 0.8241  data_time: 0.8461  lr: {lr:.5g}  max_mem: 1966M")
        truth.write(step, loss=loss, lr=float(f"{lr:.5g}"))


def fastai():
    """fastai without a notebook."""
    print("epoch     train_loss  valid_loss  accuracy  time    ")
    for epoch in range(EPOCHS):
        train, valid, accuracy = number(6), number(6), number(6, 0, 1)
        print(f"{epoch:<9} {train:<11.6f} {valid:<11.6f} {accuracy:<9.6f} 00:0{epoch}   ")
        truth.write_epoch(epoch, loss=train, eval_loss=valid, eval_accuracy=accuracy)


def stable_baselines3():
    """DLR-RM/stable-baselines3: boxes of keys, and steps of the environment."""
    print("Using cpu device\nWrapping the env with a `Monitor` wrapper\nWrapping the env in a DummyVecEnv.")
    for i in range(1, 5):
        reward, loss = number(3), number(3)
        rows = [("rollout/", ""), ("   ep_len_mean", 24.8), ("   ep_rew_mean", reward), ("time/", ""), ("   fps", 2804),
                ("   iterations", i), ("   time_elapsed", i), ("   total_timesteps", 2048 * i)]
        if i > 1:
            rows += [("train/", ""), ("   approx_kl", 0.0072), ("   learning_rate", 0.0003), ("   loss", loss), ("   n_updates", 40)]
        print("-" * 41, *(f"| {key:<23} | {value!s:<11} |" for key, value in rows), "-" * 41, sep="\n")
        truth.write(2048 * i, reward=reward, **({"loss": loss, "lr": 0.0003} if i > 1 else {}))


def cleanrl():
    """vwxyzjn/cleanrl ppo.py."""
    for step in (23, 150, 236, 324, 512):
        reward = float(random.randint(10, 500))
        print(f"global_step={step}, episodic_return=[{reward:.0f}.]")
        truth.write(step, reward=reward)
        if step % 2 == 0:
            print("SPS: 2400")


def keras_lines():
    """Keras 3 with `verbose=2`: the count of each epoch ends with it, and a test follows."""
    for epoch in range(1, EPOCHS + 1):
        accuracy, loss, val_accuracy, val_loss = number(4, 0, 1), number(), number(4, 0, 1), number()
        print(f"Epoch {epoch}/{EPOCHS}")
        print(f"{BATCHES}/{BATCHES} - 3s - 3ms/step - accuracy: {accuracy:.4f} - loss: {loss:.4f} - val_accuracy: {val_accuracy:.4f} - "
              f"val_loss: {val_loss:.4f}")
        truth.write(epoch * BATCHES, loss=loss, accuracy=accuracy, eval_loss=val_loss, eval_accuracy=val_accuracy, epoch=epoch,
                    total_steps=EPOCHS * BATCHES)
    print(f"{BATCHES}/{BATCHES} - 0s - 1ms/step - accuracy: 0.9876 - loss: 9.0000")


def dcgan():
    """pytorch/examples dcgan: nothing but numbers in brackets."""
    for epoch in range(EPOCHS):
        for batch in range(0, BATCHES, 2):
            d, g = number(), number()
            print(f"[{epoch}/{EPOCHS}][{batch}/{BATCHES}] Loss_D: {d:.4f} Loss_G: {g:.4f} D(x): 0.5000 D(G(z)): 0.4000 / 0.3000")
            truth.write(epoch * BATCHES + batch, loss_d=d, loss_g=g, epoch=epoch)


def cifar():
    """pytorch/tutorials cifar10_tutorial.py, with its evaluation."""
    for epoch in (1, 2):
        for batch in (2000, 4000):
            loss = number(3)
            print(f"[{epoch}, {batch:5d}] loss: {loss:.3f}")
            if epoch == 1:
                truth.write(batch, loss=loss, epoch=epoch)
    print("Finished Training\nPredicted:  cat   ship  ship  ship")
    print("Accuracy of the network on the 10000 test images: 54 %\nAccuracy for class: plane is 58.4 %")
    truth.write(4000, eval_accuracy=0.54)


def samples():
    """pytorch/examples mnist: the count is that of samples, and 6400 of them lie between two lines."""
    steps = -(-60000 // 6400)
    for epoch in range(1, EPOCHS + 1):
        for count in range(0, 60000, 6400):
            loss = number(6)
            print(f"Train Epoch: {epoch} [{count}/60000 ({count / 600:.0f}%)]\tLoss: {loss:.6f}")
            truth.write((epoch - 1) * steps + count // 6400, loss=loss, epoch=epoch)
        mean, right = number(4), random.randint(9000, 9999)
        print(f"\nTest set: Average loss: {mean:.4f}, Accuracy: {right}/10000 ({right / 100:.0f}%)\n")
        truth.write(epoch * steps - 1, eval_loss=mean, eval_accuracy=right / 10000)


def open_clip():
    """mlfoundations/open_clip: samples of all GPUs, the first batch and then every hundredth."""
    batch, size = 4096, 1_000_000
    steps = -(-size // batch)
    for epoch in range(2):
        for step in range(0, steps, 100):
            loss, rate, count = number(4), number(6, 0, 1), (step + 1) * batch
            print(f"2024-01-01,10:00:{epoch:02d} | INFO | Train Epoch: {epoch} [{count:>7}/{size} ({100 * count / size:.0f}%)] "
                  f"Data (t): 0.012 Batch (t): 1.250, 3276.8/s, 3276.8/s/gpu LR: {rate:.6f} Logit Scale: 14.286 "
                  f"Contrastive_loss: {loss + 1:#.5g} ({loss:#.5g}) Loss: {loss + 1:#.5g} ({loss:#.5g})")
            truth.write(epoch * steps + step + 1, loss=float(f"{loss + 1:#.5g}"), lr=rate, epoch=epoch)


def quickstart():
    """pytorch/tutorials quickstart_tutorial.py: the count of samples stands behind the loss, a heading before the evaluation."""
    steps = -(-60000 // 64)
    for epoch in range(1, EPOCHS + 1):
        print(f"Epoch {epoch}\n-------------------------------")
        for batch in range(0, steps, 100):
            loss = number(6)
            print(f"loss: {loss:>7f}  [{(batch + 1) * 64:>5d}/{60000:>5d}]")
            truth.write((epoch - 1) * steps + batch + 1, loss=loss, epoch=epoch)
        right, mean = number(1, 0, 99), number(6)
        print(f"Test Error: \n Accuracy: {right:>0.1f}%, Avg loss: {mean:>8f} \n")
        truth.write((epoch - 1) * steps + batch + 1, eval_accuracy=right / 100, eval_loss=mean)


def speedrun():
    """KellerJordan/modded-nanogpt: steps without a loss, and evaluations whose count is that of the training."""
    for step in range(1, 376):
        if step % 125 == 0:
            loss = number(4)
            print(f"step:{step}/1750 val_loss:{loss:.4f} train_time:{step * 123}ms step_avg:{123.4:.2f}ms")
            truth.write(step, eval_loss=loss)
        elif step % 25 == 0:
            print(f"step:{step}/1750 train_time:{step * 123}ms step_avg:{123.4:.2f}ms")


def maxtext():
    """AI-Hypercomputer/maxtext."""
    for step in range(12):
        loss = number(3)
        print(f"completed step: {step}, seconds: 1.234, TFLOP/s/device: 120.100, Tokens/s/device: 4000.100, total_weights: 8192, "
              f"loss: {loss:.3f}")
        truth.write(step, loss=loss)
    mean = number(3)
    print(f"eval metrics after step: 11, loss={mean:.3f}, total_weights=4096.0")
    truth.write(11, eval_loss=mean)


def notebook():
    """Hugging Face's Trainer in a notebook that is run as a script: a table with tabs."""
    print("Step\tTraining Loss\tValidation Loss\tWer")
    for step in range(100, 500, 100):
        train, valid, wer = number(6), number(6), number(6, 1, 99)
        print(f"{step}\t{train:.6f}\t{valid:.6f}\t{wer:.6f}")
        truth.write(step, train_loss=train, eval_loss=valid, eval_wer=wer)


def comma_rows():
    """A script that prints its table with commas."""
    print("epoch,train_loss,val_loss,val_acc")
    for epoch in range(1, EPOCHS + 1):
        train, valid, accuracy = number(), number(), number(4, 0, 1)
        print(f"{epoch},{train},{valid},{accuracy}")
        truth.write_epoch(epoch, loss=train, eval_loss=valid, eval_accuracy=accuracy)


def ultralytics_tqdm():
    """ultralytics/yolov5, and Ultralytics before its own bar: tqdm behind the row, redrawn within each batch and after it."""
    batches = 4
    for epoch in range(1, EPOCHS + 1):
        print(f"\n{'Epoch':>11}{'GPU_mem':>11}{'box_loss':>11}{'cls_loss':>11}{'dfl_loss':>11}{'Instances':>11}{'Size':>11}")
        row, losses = "", (0, 0, 0)
        for batch in range(batches + 1):
            print(f"\r{row}: {25 * batch:3d}%|{'#' * batch:<4}| {batch}/{batches} [00:0{batch}<00:03,  2.20it/s]", end="")
            if batch > 0:
                truth.write((epoch - 1) * batches + batch, box_loss=losses[0], cls_loss=losses[1], dfl_loss=losses[2], epoch=epoch,
                            total_steps=EPOCHS * batches)
            if batch < batches:
                losses = number(3), number(3), number(3)
                row = f"{f'{epoch}/{EPOCHS}':>11}{'3.41G':>11}" + "".join(f"{loss:>11.4g}" for loss in losses) + f"{226:>11}{640:>11}"
                print(f"\r{row}: {25 * batch:3d}%|{'#' * batch:<4}| {batch}/{batches} [00:0{batch}<00:03,  2.20it/s]", end="")
        print(f"\n{'Class':>22}{'Images':>11}{'Instances':>11}{'Box(P':>11}{'R':>11}{'mAP50':>11}{'mAP50-95)':>11}: "
              f"100%|####| 1/1 [00:01<00:00,  3.10it/s]")
        score = number(3, 0, 1)
        print(f"{'all':>22}{128:>11}{929:>11}{0.711:>11.3g}{0.621:>11.3g}{score:>11.3g}{0.471:>11.3g}")
        truth.write(epoch * batches, eval_map50=float(f"{score:.3g}"))


FORMS = {
    "pytorch-quickstart": quickstart,
    "modded-nanogpt": speedrun,
    "maxtext": maxtext,
    "notebook-table": notebook,
    "comma-rows": comma_rows,
    "ultralytics-tqdm": ultralytics_tqdm,
    "pytorch-tutorial": tutorial,
    "pytorch-imagenet": imagenet,
    "pytorch-dcgan": dcgan,
    "pytorch-cifar": cifar,
    "pytorch-mnist": samples,
    "open-clip": open_clip,
    "torchvision": metric_logger,
    "timm": timm,
    "epoch-batch": batches,
    "mmengine": mmengine,
    "mmengine-iterations": mmengine_iterations,
    "litgpt": litgpt,
    "speechbrain": speechbrain,
    "detectron2": detectron2,
    "fastai": fastai,
    "stable-baselines3": stable_baselines3,
    "cleanrl": cleanrl,
    "keras-lines": keras_lines,
}
FORMS[sys.argv[1]]()
