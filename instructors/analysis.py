# %% [markdown]
# # Do they learn? The analysis of a class
#
# Reads the data that `python -m workbench.course.evidence FOLDER … --key KEY --out data.csv` writes, and shows gain,
# items, predictions and times. As it stands here it shows **a simulated class**: the file was drawn from a model, and
# no learner has answered anything. No class has been yet, so nothing here says that anybody learns.
#
# For your class, write the name of your file into the next cell, and run all cells.

# %%
DATA = "simulated_class.csv"
UPTO = 12  # the last question that was asked: 6 for the track Use, 9 for Build

# %%
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from workbench.course.evidence import analysis
from workbench.course.evidence.items import LETTERS, all_items
from workbench.errors import WorkbenchError

rows = analysis.read(Path(DATA))
before, after, counts = analysis.paired(rows, UPTO)
a, b = before.mean(axis=1), after.mean(axis=1)
if any(row["learner"].startswith("simulated") for row in rows):
    print("SIMULATED CLASS: drawn from a model, no learner has answered anything.")
for what, count in counts.items():
    print(f"{count:4}  {what}")

# %% [markdown]
# A test counts as taken if at least half of it is answered; an open question of it is not right. Only who has taken
# both tests is in what follows. If those who left were the weaker ones, the gain of those who stayed says too much:
# compare how many they are.
#
# ## Gain
#
# The gain of the class (Hake 1998): of what it could gain on average, the part that it did. The mean of the learners'
# own gains (Bao 2006) counts each learner the same; who had everything right before has none. The intervals are 95 %,
# by bootstrap over the learners.


# %%
def told(name, gain):
    try:
        low, high = analysis.interval(gain, a, b)
        print(f"{name}: {gain(a, b):.3f}, 95 % interval {low:.3f} to {high:.3f}")
    except WorkbenchError as error:
        print(f"{name}: {error}")


print(f"right before {a.mean():.1%}, after {b.mean():.1%}; all right before: {np.sum(a == 1)}")
told("gain of the class", analysis.class_gain)
told("mean of the gains", analysis.mean_gain)

# %%
numbers = np.arange(1, before.shape[1] + 1)
fig, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
axes[0].plot([0, 100], [0, 100], color="0.7")
axes[0].scatter(100 * a, 100 * b, alpha=0.5)
axes[0].set(xlabel="right before, %", ylabel="right after, %", title="a point is a learner")
axes[1].vlines(numbers, 100 * before.mean(axis=0), 100 * after.mean(axis=0), color="0.7")
axes[1].plot(numbers, 100 * before.mean(axis=0), "o", mfc="white", label="before")
axes[1].plot(numbers, 100 * after.mean(axis=0), "o", label="after")
axes[1].set(xlabel="item", ylabel="right, %", xticks=numbers, ylim=(0, 100), title="items")
axes[1].legend()
plt.show()

# %% [markdown]
# ## Items
#
# *right*: the share before and after; *now* and *no more*: how many learners answered it right only after, or only
# before. *discriminates*: how the item goes with the others after the course (corrected point-biserial). Ebel's
# bounds: 0.40 very good, 0.30 good, 0.20 to be improved. Below 0, look at the key first. With 30 learners an item
# without any discrimination is between −0.37 and 0.37 by chance.


# %%
def look(difficulty, value):
    if not 0.1 <= difficulty <= 0.9:
        return "too hard" if difficulty < 0.5 else "too easy"
    return "look at the key" if value < 0 else "poor" if value < 0.2 else ""


values = analysis.discrimination(after)
print("item  right before  after   now  no more  discriminates  measures")
for i, item in enumerate(all_items()[:UPTO]):
    old, new = before[:, i], after[:, i]
    said = look(new.mean(), values[i])
    print(
        f"{item.number:4} {old.mean():13.0%} {new.mean():6.0%} {np.sum(new > old):5} {np.sum(new < old):8}"
        f" {values[i]:14.2f}  {item.measures}{f'  ← {said}' if said else ''}"
    )
for name, table in (("before", before), ("after", after)):
    print(f"reliability {name} (KR-20): {analysis.kr20(table):.2f}")
if len(after) < analysis.ENOUGH:
    print(f"{len(after)} learners are fewer than {analysis.ENOUGH}: discrimination and reliability say little.")

# %%
fig, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
axis.axhspan(-1, 0.2, color="0.93")
axis.scatter(100 * after.mean(axis=0), values)
for number, x, y in zip(numbers, 100 * after.mean(axis=0), values, strict=True):
    axis.annotate(str(number), (x, y), xytext=(4, 3), textcoords="offset points")
axis.set(xlabel="right after, %", ylabel="discriminates", xlim=(0, 100), ylim=(min(-0.1, np.nanmin(values) - 0.1), 1))
axis.set_title("items; grey: poor")
plt.show()

# %% [markdown]
# Which wrong choices, by letter (`instructors/test.md` names the mistake behind each), before → after, of all who
# answered:

# %%
chosen = Counter((row["name"], row["answer"]) for row in rows)
for item in all_items()[:UPTO]:
    n = item.number
    each = [
        f"{x}{'*' if i == item.right else ' '} {chosen[f'before.{n}', x]:3} → {chosen[f'after.{n}', x]:3}"
        for i, x in enumerate(LETTERS)
    ]
    print(f"{n:4}  {'   '.join(each)}   open {chosen[f'before.{n}', '']:3} → {chosen[f'after.{n}', '']:3}")

# %% [markdown]
# ## Predictions
#
# Of those who made a prediction and saw the fact: how many were right, and how that goes with their other
# predictions. A prediction that nearly all get right surprises nobody.

# %%
names, table = analysis.scored(rows, "prediction")
for i, value in enumerate(analysis.discrimination(table)):
    n = np.isfinite(table[:, i]).sum()
    print(f"{names[i]:16} {n:4} answered, {np.nanmean(table[:, i]):4.0%} right, discriminates {value:5.2f}")

# %% [markdown]
# ## Time per exercise
#
# From the first run of the exercise's cell to the check that it passed first. Of a pause of more than ten minutes
# without a check only ten minutes count. Who passed is in the median, and who gave up is not: look at both.

# %%
names, table = analysis.scored(rows, "exercise")
minutes = {
    name: [float(row["seconds"]) / 60 for row in rows if row["name"] == name and row["seconds"]] for name in names
}
for i, name in enumerate(names):
    tried, passed = np.isfinite(table[:, i]).sum(), int(np.nansum(table[:, i]))
    median = f"median {np.median(minutes[name]):5.1f} minutes" if minutes[name] else "no times"
    print(f"{name:26} {tried:4} tried, {passed:4} passed, {median} of {len(minutes[name])}")

# %%
timed = [name for name in names if minutes[name]]
if timed:
    fig, axis = plt.subplots(figsize=(7, 0.6 + 0.3 * len(timed)), layout="constrained")
    axis.boxplot([minutes[name] for name in timed], orientation="horizontal")
    axis.set_yticks(range(1, len(timed) + 1), timed)
    axis.invert_yaxis()
    axis.set_xlabel("minutes")
    plt.show()

# %% [markdown]
# ## What may be said
#
# - Whose gain: of the learners who took both tests, in this class. There is no second class without the course, so
#   what they learnt elsewhere meanwhile is in it.
# - Both forms are taken to be equally difficult. Nobody has tested that: ask a part of the class form B first.
# - An interval that contains 0 does not show that nothing was learnt; it shows that this class was too small to tell.
