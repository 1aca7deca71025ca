"""sentence-transformers: the SentenceTransformerTrainer of its training overview."""

from datasets import Dataset
from measured import note, training
from sentence_transformers import (
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from synthetic import numbers, sentence_transformer, sentences


class Loss(losses.MultipleNegativesRankingLoss):
    def forward(self, sentence_features, labels):
        features = list(sentence_features)
        note(numbers(features[0]["input_ids"]))
        return super().forward(features, labels)


texts = sentences(3000)
data = Dataset.from_dict({"anchor": texts, "positive": [f"{text} w7" for text in texts]})
model = sentence_transformer()
arguments = SentenceTransformerTrainingArguments(
    output_dir="out", num_train_epochs=2, per_device_train_batch_size=16,
    dataloader_num_workers=2, report_to=[], save_strategy="no", disable_tqdm=True,
)  # fmt: skip
trainer = SentenceTransformerTrainer(
    model=model, args=arguments, train_dataset=data, loss=Loss(model)
)

with training(epochs=2):
    trainer.train()
