import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, EnvironmentMismatchError, SchemaError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.shapes import Port
from distkeras_grid.inference.predictor import ModelPredictor, as_lists, output_columns
from distkeras_grid.inference.vote_counts import class_names

IMAGE = Field("image", (2, 2, 1), scale=1 / 255, classes=("dark", "light"))


def test_outputs_of_any_shape_become_one_list_a_row():
    lists = as_lists(np.arange(12, dtype=np.float64).reshape(2, 3, 2), 2)
    assert str(lists.type) == "list<item: float>"
    assert lists.to_pylist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert as_lists(np.array([0.5, 1.5]), 2).to_pylist() == [[0.5], [1.5]]


def test_an_output_without_a_value_for_each_row_is_refused():
    with pytest.raises(ConfigurationError, match="for 2 rows"):
        as_lists(np.zeros((3, 1)), 2)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("p", ("p_kind", "p_age")),
        (["k", "a"], ("k", "a")),
        ({"age": "years", "kind": "k"}, ("k", "years")),
    ],
)
def test_each_output_gets_a_column(given, names):
    assert output_columns(given, (Port("kind", (3,)), Port("age", (1,)))) == names


@pytest.mark.parametrize("given", ["p", ["p", "p"]])
def test_two_outputs_do_not_share_a_column(given):
    """A layer that is applied twice gives two outputs of one name."""
    with pytest.raises(ConfigurationError, match="Each output needs a column of its own"):
        output_columns(given, (Port("head", (3,)), Port("head", (3,))))


def test_one_output_keeps_the_name():
    assert output_columns("p", (Port("kind", (3,)),)) == ("p",)
    assert output_columns("p", ()) == ("p",)


def test_a_batch_holds_at_least_a_row():
    with pytest.raises(ConfigurationError, match="at least 1"):
        ModelPredictor(None, batch_size=0)


@pytest.fixture
def model():
    """Sums the scaled values of an image, and has their negative beside it."""
    import keras

    model = keras.Sequential(
        [keras.Input((2, 2, 1)), keras.layers.Flatten(), keras.layers.Dense(2, use_bias=False)]
    )
    model.layers[-1].set_weights([np.array([[1, -1]] * 4, np.float32)])
    return model


PIXELS = np.arange(40, dtype=np.uint8).reshape(10, 2, 2, 1)
EXPECTED = PIXELS.reshape(10, 4).sum(axis=1) / 255


def images(spark, rows=10):
    """Ten raw images, each with its number, in a column that carries its own description."""
    data = [(number, bytearray(PIXELS[number].tobytes())) for number in range(rows)]
    df = spark.createDataFrame(data, "number int, image binary")
    df = df.withMetadata("number", {"comment": "kept"})
    return df.withMetadata("image", IMAGE.to_metadata())


@pytest.mark.spark
@pytest.mark.tensorflow
class TestOnSpark:
    @pytest.mark.full
    def test_predictions_stand_beside_all_columns(self, spark, model):
        df = images(spark).repartition(3)
        # Three rows at a time: a batch that is not full must count as well.
        predicted = ModelPredictor(model, "image", batch_size=3).predict(df)
        assert predicted.columns == ["number", "image", "prediction"]
        assert predicted.schema["prediction"].dataType.simpleString() == "array<float>"
        assert predicted.schema["number"].metadata == {"comment": "kept"}
        assert Field.from_metadata("image", predicted.schema["image"].metadata) == IMAGE
        assert class_names(predicted.select("prediction")) == ("dark", "light")
        rows = sorted(predicted.collect())
        assert [row["image"] for row in rows] == [row["image"] for row in sorted(df.collect())]
        sums = np.array([row["prediction"] for row in rows])
        np.testing.assert_allclose(sums, np.stack([EXPECTED, -EXPECTED], axis=1), rtol=1e-6)

    def test_an_empty_partition_has_no_predictions(self, spark, model):
        predicted = ModelPredictor(model, "image").predict(images(spark).where("number < 0"))
        assert predicted.collect() == []
        assert predicted.columns == ["number", "image", "prediction"]

    def test_the_model_is_loaded_once_in_a_python_worker(self, spark, tmp_path):
        import os
        import uuid

        import keras

        class Marked(keras.layers.Layer):
            """Leaves a file each time a Python worker builds it."""

            def __init__(self, folder, **options):
                super().__init__(**options)
                self.folder = folder
                open(os.path.join(folder, f"{os.getpid()}-{uuid.uuid4()}"), "w").close()

            def call(self, x):
                return x

            def get_config(self):
                return {**super().get_config(), "folder": self.folder}

        marked = keras.Sequential([keras.Input((2, 2, 1)), Marked(str(tmp_path))])
        marked.build()
        predictor = ModelPredictor(marked, "image", custom_objects={"Marked": Marked})
        predictor.predict(images(spark).repartition(6)).collect()
        workers = [name.split("-")[0] for name in os.listdir(tmp_path)]
        loads = [workers.count(worker) for worker in set(workers) - {str(os.getpid())}]
        assert loads
        assert set(loads) == {1}

    def test_own_classes_are_refused_on_the_driver_or_travel(self, spark):
        import keras

        class Own(keras.layers.Layer):
            def call(self, x):
                return keras.ops.reshape(x, (-1, 4))

        own = keras.Sequential([keras.Input((2, 2, 1)), Own()])
        with pytest.raises(ConfigurationError):
            ModelPredictor(own, "image").predict(images(spark))
        with keras.saving.custom_object_scope({"Own": Own}):
            predicted = ModelPredictor(own, "image").predict(images(spark))
        assert predicted.count() == len(predicted.collect()) == 10

    def test_encoded_images_are_decoded(self, spark, model):
        import cv2

        field = Field("image", (2, 2, 1), scale=1 / 255, encoding="png")
        encoded = [(bytearray(cv2.imencode(".png", PIXELS[i])[1].tobytes()), "a") for i in range(3)]
        df = spark.createDataFrame(
            [(row,) for row in encoded], "image struct<bytes:binary,path:string>"
        )
        rows = ModelPredictor(model, field).predict(df.coalesce(1)).collect()
        np.testing.assert_allclose([row["prediction"][0] for row in rows], EXPECTED[:3], rtol=1e-6)
        assert rows[0]["image"]["path"] == "a"

    def test_columns_that_cannot_be_used_are_refused_before_work(self, spark, model):
        df = images(spark)
        with pytest.raises(SchemaError, match=r"column 'number' already.*df\.drop"):
            ModelPredictor(model, "image", output_col="number").predict(df)
        with pytest.raises(SchemaError, match=r"'imag' is not a column.*'image'"):
            ModelPredictor(model, "imag").predict(df)
        with pytest.raises(SchemaError, match=r"values of shape \(4, 1, 1\)"):
            ModelPredictor(model, Field("image", (4, 1, 1))).predict(df)
        with pytest.raises(ConfigurationError, match="must be a DataFrame"):
            ModelPredictor(model, "image").predict(PIXELS)

    def test_executors_are_asked_before_work(self, spark, model, monkeypatch):
        from distkeras_grid.spark import interpreters

        def refuse(spark, packages):
            raise EnvironmentMismatchError("executors lack tensorflow")

        monkeypatch.setattr(interpreters, "check_executors", refuse)
        with pytest.raises(EnvironmentMismatchError):
            ModelPredictor(model, "image").predict(images(spark))
