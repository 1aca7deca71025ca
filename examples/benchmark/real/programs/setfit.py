"""SetFit: the Trainer of its README, pairs of sentences and a head of scikit-learn.

Its loader has no workers. It draws some pairs twice, to have the same number of each kind.
"""

from datasets import Dataset
from measured import note, training
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.linear_model import LogisticRegression
from synthetic import numbers, sentence_transformer, sentences

body = sentence_transformer()
model = SetFitModel(model_body=body, model_head=LogisticRegression())
data = Dataset.from_dict({"text": sentences(40), "label": [i % 2 for i in range(40)]})
arguments = TrainingArguments(
    output_dir="out", batch_size=16, num_epochs=4, report_to="none", save_strategy="no",
    show_progress_bar=False,
)  # fmt: skip
trainer = Trainer(model=model, args=arguments, train_dataset=data)
pair = []


def noting(body, arguments):
    if body.training:
        pair.append(numbers(arguments[0]["input_ids"]))
        if len(pair) == 2:  # the sentences of a pair come one after the other
            note(pair[0] * 40 + pair[1])
            pair.clear()


body.register_forward_pre_hook(noting)

with training(epochs=4):
    trainer.train()
