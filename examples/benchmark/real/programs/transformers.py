"""Transformers: a Trainer for the classification of sentences, tokenized as they are read."""

from measured import note, training
from synthetic import bert_config, numbers, sentences, tokenizer
from torch.utils.data import Dataset
from transformers import (
    BertForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

tokenize = tokenizer()


class Texts(Dataset):
    def __init__(self):
        self.texts = sentences(3000)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return {**tokenize(self.texts[i]), "labels": i % 2}


def noting(model, arguments, options):
    note(numbers(options["input_ids"]))


model = BertForSequenceClassification(bert_config())
model.register_forward_pre_hook(noting, with_kwargs=True)
arguments = TrainingArguments(
    output_dir="out", num_train_epochs=2, per_device_train_batch_size=16,
    dataloader_num_workers=2, report_to=[], save_strategy="no", disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(
    model=model, args=arguments, train_dataset=Texts(), processing_class=tokenize,
    data_collator=DataCollatorWithPadding(tokenize),
)  # fmt: skip

with training(epochs=2):
    trainer.train()
