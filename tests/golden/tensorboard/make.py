"""Prints the events of src/telemetry/tensorboard.rs's golden test, as TensorBoard's own protocol buffers encode them.

    pip install tensorboard==2.21.0 && python tests/golden/tensorboard/make.py
"""

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
from tensorboard.plugins.hparams import plugin_data_pb2
from google.protobuf import struct_pb2
def ev(value, step):
    e = event_pb2.Event(wall_time=2.0, step=step)
    e.summary.value.append(value)
    return e.SerializeToString(deterministic=True)
h = summary_pb2.HistogramProto(min=1, max=1, num=1, sum=1, sum_squares=1, bucket_limit=[1.0], bucket=[1.0])
print(ev(summary_pb2.Summary.Value(tag="h", histo=h), 3).hex())
t = tensor_pb2.TensorProto(dtype=7, string_val=[b"hi"], tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)]))
m = summary_pb2.SummaryMetadata(plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text"))
print(ev(summary_pb2.Summary.Value(tag="t", tensor=t, metadata=m), 3).hex())
s = plugin_data_pb2.SessionStartInfo(start_time_secs=2.0)
s.hparams["lr"].number_value = 0.5
s.hparams["on"].bool_value = True
c = plugin_data_pb2.HParamsPluginData(session_start_info=s)
m = summary_pb2.SummaryMetadata(plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="hparams", content=c.SerializeToString(deterministic=True)))
print(ev(summary_pb2.Summary.Value(tag="_hparams_/session_start_info", metadata=m), 0).hex())
