"""From a table to calibrated probabilities in a few lines."""

import fieldwise

log = fieldwise.World("demo", seed=1).log(6000).table.to_pandas()
train, test = log.iloc[:5000], log.iloc[5000:]

model = fieldwise.Classifier(model="fm", settings={"train.epochs": 4}, seed=0)
model.fit(train.drop(columns="click"), train["click"])

probability = model.predict_proba(test)[:, 1]
print(f"mean predicted {probability.mean():.3f}, observed {test['click'].mean():.3f}")
