"""Whether more is better of a number: declared, known by its name, or not known."""

import pytest

import fedlsg
from fedlsg.config.directions import HIGHER, LOWER, higher_is_better
from tests.places import REPOSITORY

MORE = """
accuracy test_accuracy val_acc top5_accuracy top_5_accuracy acc@1 top1 F1 f1_score macro_f1 F1-macro
MulticlassF1Score AUC ROC-AUC BinaryAUROC auroc pr_auc r2 R2Score r_squared bleu BLEU-4 rouge1 rouge_2
rougeL rougeLsum ROUGE-L recall@10 ndcg@10 mAP mAP50 mean_iou dice neg_mean_squared_error neg_log_loss
log_likelihood negative_predictive_value bert_score average_precision true_positive_rate
mean_reciprocal_rank exact_match psnr
"""
LESS = """
loss test_loss log_loss hinge_loss dice_loss LogLoss error errors error_rate test/error mae MAE testMAE
mse rmse RMSE mean_absolute_error MeanSquaredError max_error word_error_rate wer cer perplexity ppl
brier brier_score ece calibration_error nll negative_log_likelihood neg_log_likelihood cross_entropy
false_positive_rate fid classification_error accuracy_loss neg_accuracy bits_per_byte
"""
NOBODY = """
gini entropy confidence score mean my_number seconds accuracy_drop error_reduction 1-accuracy 1/mae
one_minus_error inverse_loss non_error attack_accuracy attacker_loss lossless errorless terror maerz
-mae 5 _
"""


def measure(outputs, targets):
    return outputs + targets


@pytest.mark.parametrize("name", MORE.split())
def test_more_of_these_is_better(name):
    assert higher_is_better(name) is True


@pytest.mark.parametrize("name", LESS.split())
def test_less_of_these_is_better(name):
    assert higher_is_better(name) is False


@pytest.mark.parametrize("name", NOBODY.split())
def test_of_these_nobody_knows(name):
    """Control: a rule that takes every name with "loss" or "error" in it, or none, fails."""
    assert higher_is_better(name) is None


def test_every_name_of_the_tables_is_known_once():
    assert not {*HIGHER} & {*LOWER}
    assert all(higher_is_better(name) is True for name in HIGHER)
    assert all(higher_is_better(name) is False for name in LOWER)


def test_the_document_has_every_name():
    """Control: a name that is not in the table."""
    text = (REPOSITORY / "docs" / "callbacks.md").read_text()
    assert [name for name in (*HIGHER, *LOWER) if f"`{name}`" not in text] == []
    assert "`gini`," not in text


def test_a_declaration_comes_before_the_name():
    class Error:
        higher_is_better = False

    assert higher_is_better("accuracy", fedlsg.Lower(measure)) is False
    assert higher_is_better("mae", fedlsg.Higher(measure)) is True
    assert higher_is_better("gini", Error()) is False
    assert higher_is_better("mae", measure) is False
    assert fedlsg.Lower(measure)(1, 2) == fedlsg.Higher(measure)(1, 2) == 3


@pytest.mark.parametrize("declare", [fedlsg.Lower, fedlsg.Higher])
def test_what_is_no_function_is_refused(declare):
    with pytest.raises(
        ValueError, match=rf"fedlsg.{declare.__name__}\(Lower\): expected a function"
    ):
        declare(fedlsg.Lower(max))
    with pytest.raises(ValueError, match=rf"fedlsg.{declare.__name__}\(str\): expected a function"):
        declare("mae")
