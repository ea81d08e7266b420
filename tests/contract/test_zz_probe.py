import time
from tests.support.broker import unique_name, create_topic
from tests.support.lab_kafka import KafkaLab
def test_x(broker):
    lab=KafkaLab(broker.bootstrap_servers)
    t=lab.topic(); lab.write(t,b"0")
    c=lab.coordinator(unique_name("ns"))
    r=c.make_reader("read_committed"); r.assign({(t,0):0})
    end=time.monotonic()+4
    while time.monotonic()<end:
        for x in r.read(record_count_max=10,timeout_s=0.2): print("A",x.value(), x.error())
    lab.delete_topic(t); t0=time.monotonic()
    while time.monotonic()<t0+40:
        for x in r.read(record_count_max=10,timeout_s=0.2): print("B",round(time.monotonic()-t0,1), x.value(), x.error())
