import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Utils;

/**
 * A producer of transactional messages in another language: it knows txlayer from docs/reference/vectors.json alone.
 *
 * <pre>
 * ForeignProducer vectors FILE                  computes every vector of the file, and prints those that differ
 * ForeignProducer run FILE SERVERS NAMESPACE    does what the plan on its input says, and prints a line for each step
 * </pre>
 *
 * A plan: {"transactions": [{"input": as in vectors.json, "ends": ["commit" | "rollback" | "cancel", …]}],
 * "producer_group": …, "answers": {id: "commit" | "rollback" | "unknown"}}. It ends when every id of the answers got a commit or rollback.
 */
public final class ForeignProducer {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private final JsonNode rules;

    private ForeignProducer(JsonNode rules) {
        this.rules = rules;
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode file = JSON.readTree(new File(arguments[1]));
        var producer = new ForeignProducer(file.get("rules"));
        if (arguments[0].equals("vectors")) {
            producer.check(file);
        } else {
            producer.run(JSON.readTree(System.in), arguments[2], arguments[3]);
        }
    }

    // --- what is written -----------------------------------------------------------------------------------------------

    /** A half record without its topic and partition. */
    private record Half(byte[] key, byte[] value, List<Map.Entry<String, byte[]>> headers) {}

    /** The half partition and the half records of one transaction. */
    private record Encoded(int partition, List<Half> records) {}

    private Encoded encode(JsonNode input, int partitionCount) {
        refuseUnlessValid(input, partitionCount);
        byte[] orderingKey = orderingKey(input);
        byte[] placed = orderingKey == null ? input.get("txn_id").asText().getBytes(StandardCharsets.US_ASCII) : orderingKey;
        var records = new ArrayList<Half>();
        JsonNode messages = input.get("messages");
        for (int index = 0; index < messages.size(); index++) {
            JsonNode message = messages.get(index);
            var headers = new ArrayList<Map.Entry<String, byte[]>>();
            for (JsonNode header : message.get("headers")) {
                headers.add(entry(header.get("name").asText(), bytes(header.get("value"))));
            }
            headers.add(entry(rules.at("/half_header/name").asText(), halfHeader(input, message, index, orderingKey)));
            records.add(new Half(bytes(message.get("key")), bytes(message.get("value")), headers));
        }
        return new Encoded((int) (crc32(placed) % partitionCount), records);
    }

    private byte[] halfHeader(JsonNode input, JsonNode message, int index, byte[] orderingKey) {
        var options = new HashMap<String, String>();
        if (orderingKey != null) {
            options.put("key_hash", keyHash(orderingKey));
            if (message.get("key").isNull() && message.get("partition").isNull()) {
                options.put("key_murmur", Integer.toString(Utils.toPositive(Utils.murmur2(orderingKey))));
            }
        }
        if (input.get("order").asText().equals("prepare")) {
            options.put("order", "p");
        }
        for (String name : List.of("partition", "timestamp_ms", "deliver_at_ms")) {
            if (!message.get(name).isNull()) {
                options.put(name, message.get(name).asText());
            }
        }
        if (!input.get("immunity_ms").isNull()) {
            options.put("immunity_ms", input.get("immunity_ms").asText());
        }
        var written = new ArrayList<String>();
        for (JsonNode option : rules.get("options")) {
            String value = options.get(option.get("name").asText());
            if (value != null) {
                written.add(option.get("form").asText().replace("{}", value));
            }
        }
        boolean hasTime = options.containsKey("deliver_at_ms");
        JsonNode rule = rules.get("half_header");
        return filled(rule, hasTime ? "version_with_deliver_at" : "version", input, Map.of(
                "topic", message.get("topic").asText(),
                "index", Integer.toString(index),
                "count", Integer.toString(input.get("messages").size()),
                "options", String.join(",", written)));
    }

    private byte[] opLine(JsonNode about, String resolution, long lastOffset, String source, String number, String reason) {
        return filled(rules.get("op_line"), "version", about, Map.of(
                "resolution", rules.at("/op_line/resolutions/" + resolution).asText(),
                "last_offset", Long.toString(lastOffset),
                "source", rules.at("/op_line/source_of_" + source).asText(),
                "check_number", number,
                "reason", escaped(reason)));
    }

    /** A form with its version, the fields of the transaction, and further ones. */
    private static byte[] filled(JsonNode rule, String version, JsonNode about, Map<String, String> further) {
        String text = rule.get("form").asText().replace("{version}", rule.get(version).asText());
        for (String name : List.of("txn_id", "nonce", "producer_group", "born_ms")) {
            text = text.replace("{" + name + "}", about.get(name).asText());
        }
        for (var field : further.entrySet()) {
            text = text.replace("{" + field.getKey() + "}", field.getValue());
        }
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    private static byte[] orderingKey(JsonNode input) {
        JsonNode named = input.get("ordering_key");
        if (!named.isTextual()) {
            return bytes(named);
        }
        byte[] common = null;
        for (JsonNode message : input.get("messages")) {
            byte[] key = bytes(message.get("key"));
            if (key == null || (common != null && !java.util.Arrays.equals(common, key))) {
                return null;
            }
            common = key;
        }
        return common;
    }

    private void refuseUnlessValid(JsonNode input, int partitionCount) {
        refuse(!input.get("txn_id").asText().matches(rules.get("txn_id").asText()), "the id");
        refuse(!input.get("nonce").asText().matches(rules.get("nonce").asText()), "the nonce");
        refuse(!input.get("producer_group").asText().matches(rules.get("producer_group").asText()), "the group");
        JsonNode messages = input.get("messages");
        refuse(messages.isEmpty() || messages.size() > rules.get("messages_max").asInt(), "the number of messages");
        refuse(input.get("order").asText().equals("prepare") && orderingKey(input) == null, "no ordering key");
        var times = new HashSet<Long>();
        for (JsonNode message : messages) {
            String topic = message.get("topic").asText();
            refuse(!topic.matches(rules.get("topic").asText()) || topic.equals(".") || topic.equals(".."), "the topic");
            refuse(topic.matches("txlayer\\.(half|op|doubt|check|locks)"), "a system topic");
            for (JsonNode header : message.get("headers")) {
                String name = header.get("name").asText();
                refuse(name.isEmpty() || name.startsWith(rules.get("reserved_header_prefix").asText()), "the header");
            }
            refuse(message.get("partition").asLong(0) >= partitionCount, "the partition");
            refuse(message.get("timestamp_ms").asLong(0) < 0, "the timestamp");
            times.add(message.get("deliver_at_ms").asLong(0));
        }
        refuse(times.size() > rules.get("times_max").asInt(), "the number of times");
    }

    private static void refuse(boolean isRefused, String what) {
        if (isRefused) {
            throw new IllegalArgumentException(what + " is refused; nothing was sent");
        }
    }

    // --- the plan ------------------------------------------------------------------------------------------------------

    private void run(JsonNode plan, String servers, String namespace) throws Exception {
        var settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("acks", "all");
        settings.put("enable.idempotence", "true");
        String half = topic("half", namespace);
        String op = topic("op", namespace);
        try (var kafka = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            int partitionCount = kafka.partitionsFor(half).size();
            for (JsonNode wanted : plan.get("transactions")) {
                JsonNode input = wanted.get("input");
                Encoded encoded = encode(input, partitionCount);
                var stored = new ArrayList<Future<RecordMetadata>>();
                for (Half record : encoded.records()) {
                    var message = new ProducerRecord<>(half, encoded.partition(), record.key(), record.value());
                    record.headers().forEach(header -> message.headers().add(header.getKey(), header.getValue()));
                    stored.add(kafka.send(message));
                }
                long lastOffset = -1;
                for (Future<RecordMetadata> record : stored) {
                    lastOffset = record.get().offset();
                }
                // Here a service commits its database transaction, or rolls it back.
                for (JsonNode end : wanted.get("ends")) {
                    byte[] line = opLine(input, end.asText(), lastOffset, "producer", "", "");
                    kafka.send(new ProducerRecord<>(op, encoded.partition(), null, line)).get();
                }
                System.out.println("stored " + input.get("txn_id").asText() + " " + encoded.partition() + " " + lastOffset);
            }
            answer(kafka, plan, servers, namespace);
        }
    }

    private void answer(KafkaProducer<byte[], byte[]> kafka, JsonNode plan, String servers, String namespace) throws Exception {
        JsonNode answers = plan.get("answers");
        String group = plan.get("producer_group").asText();
        Set<String> open = new HashSet<>();
        answers.fieldNames().forEachRemaining(open::add);
        var settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", rules.get("check_group").asText().replace("{namespace}", namespace).replace("{producer_group}", group));
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "latest");
        try (var kafkaConsumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            kafkaConsumer.subscribe(List.of(topic("check", namespace)));
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (!open.isEmpty() && System.nanoTime() < end) {
                for (ConsumerRecord<byte[], byte[]> record : kafkaConsumer.poll(Duration.ofMillis(200))) {
                    ObjectNode question = question(new String(record.value(), StandardCharsets.US_ASCII), group);
                    if (question == null) {
                        continue;
                    }
                    String id = question.get("txn_id").asText();
                    String said = answers.has(id) ? answers.get(id).asText() : "unknown";
                    byte[] line = answerLine(question, said, said.equals("unknown") ? "not known here" : "");
                    kafka.send(new ProducerRecord<>(topic("op", namespace), question.get("partition").asInt(), null, line)).get();
                    System.out.println("answered " + id + " " + said + " " + question.get("number").asText());
                    if (!said.equals("unknown")) {
                        open.remove(id);
                    }
                }
            }
        }
        if (!open.isEmpty()) {
            throw new IllegalStateException("not asked about " + open);
        }
    }

    /** The fields of a question to this group; null for any other record. */
    private ObjectNode question(String line, String group) {
        String[] values = line.split("\\|", -1);
        JsonNode fields = rules.at("/check_line/fields");
        boolean isKnown = false;
        for (JsonNode version : rules.at("/check_line/versions")) {
            isKnown |= version.asText().equals(values[0]);
        }
        if (!isKnown || values.length < fields.size()) {
            return null;
        }
        ObjectNode read = JSON.createObjectNode();
        for (int at = 0; at < fields.size(); at++) {
            read.put(fields.get(at).asText(), values[at]);
        }
        boolean isQuestion = read.get("kind").asText().equals(rules.at("/check_line/kinds/question").asText());
        if (!isQuestion || !read.get("producer_group").asText().equals(group)) {
            return null;
        }
        String[] key = read.get("key").asText().split("/");
        return read.put("txn_id", key[0]).put("nonce", key[1]);
    }

    private byte[] answerLine(ObjectNode question, String said, String reason) {
        return opLine(question, said, question.get("last_offset").asLong(), "answer", question.get("number").asText(), reason);
    }

    private String topic(String name, String namespace) {
        return rules.at("/topics/" + name).asText().replace("{namespace}", namespace);
    }

    // --- the vectors ---------------------------------------------------------------------------------------------------

    private int checked;
    private int wrong;

    private void check(JsonNode file) {
        for (JsonNode vector : file.get("uuid7")) {
            same(vector.get("uuid").asText(), uuid7(vector.get("at_ms").asLong(), vector.get("random_bits").asText()));
        }
        for (JsonNode vector : file.get("partitions")) {
            String placed = vector.get(vector.get("ordering_key").isNull() ? "txn_id" : "ordering_key").asText();
            long partition = crc32(placed.getBytes(StandardCharsets.UTF_8)) % vector.get("partition_count").asLong();
            same(vector.get("partition").asText(), Long.toString(partition));
        }
        for (JsonNode vector : file.get("key_hashes")) {
            same(vector.get("key_hash").asText(), keyHash(bytes(vector.get("ordering_key"))));
        }
        for (JsonNode vector : file.get("murmur2")) {
            same(vector.get("murmur2").asText(), Integer.toString(Utils.toPositive(Utils.murmur2(bytes(vector.get("key"))))));
        }
        for (JsonNode vector : file.get("transactions")) {
            checkTransaction(vector);
        }
        for (JsonNode vector : file.get("questions")) {
            ObjectNode question = question(vector.at("/question/text").asText(), "orders");
            question.put("born_ms", vector.get("born_ms").asText());
            same(vector.get("answer_partition").asText(), question.get("partition").asText());
            for (String said : List.of("commit", "rollback", "unknown")) {
                String reason = said.equals("unknown") ? vector.get("reason_of_unknown").asText() : "";
                same(vector.at("/answers/" + said + "/hex").asText(), hex(answerLine(question, said, reason)));
            }
        }
        for (JsonNode vector : file.get("op_lines")) {
            String[] fields = vector.get("text").asText().split("\\|", -1);
            same(fields[8], escaped(vector.at("/input/reason").asText()));
        }
        for (JsonNode vector : file.at("/refused/by a producer/transactions")) {
            checked++;
            if (vector.has("input") && isEncoded(vector.get("input"))) {
                wrong++;
                System.out.println("not refused: " + vector.get("name").asText());
            }
        }
        for (JsonNode vector : file.at("/refused/by a producer/txn_ids")) {
            same("false", Boolean.toString(vector.get("txn_id").asText().matches(rules.get("txn_id").asText())));
        }
        for (JsonNode vector : file.at("/refused/by a producer/groups")) {
            same("false", Boolean.toString(vector.get("group").asText().matches(rules.get("producer_group").asText())));
        }
        System.out.println("checked " + checked + " wrong " + wrong);
    }

    private void checkTransaction(JsonNode vector) {
        JsonNode input = vector.get("input");
        JsonNode output = vector.get("output");
        Encoded encoded = encode(input, input.get("half_partition_count").asInt());
        same(output.get("partition").asText(), Integer.toString(encoded.partition()));
        same(Integer.toString(output.get("half_records").size()), Integer.toString(encoded.records().size()));
        for (int index = 0; index < encoded.records().size(); index++) {
            Half record = encoded.records().get(index);
            JsonNode expected = output.get("half_records").get(index);
            same(hex(bytes(expected.get("key"))), hex(record.key()));
            same(hex(bytes(expected.get("value"))), hex(record.value()));
            var headers = new StringBuilder();
            record.headers().forEach(header -> headers.append(header.getKey()).append('=').append(hex(header.getValue())).append(' '));
            var due = new StringBuilder();
            expected.get("headers").forEach(h -> due.append(h.get("name").asText()).append('=').append(hex(bytes(h.get("value")))).append(' '));
            same(due.toString(), headers.toString());
        }
        same(output.at("/commit_if_last_offset_is_17/hex").asText(), hex(opLine(input, "commit", 17, "producer", "", "")));
    }

    private boolean isEncoded(JsonNode input) {
        try {
            encode(input, input.get("half_partition_count").asInt());
            return true;
        } catch (IllegalArgumentException refused) {
            return false;
        }
    }

    private void same(String expected, String actual) {
        checked++;
        if (!expected.equals(actual)) {
            wrong++;
            System.out.println("expected " + expected + "\nactual   " + actual);
        }
    }

    // --- hashes and forms ----------------------------------------------------------------------------------------------

    private static String uuid7(long atMs, String randomBits) {
        var random = new java.math.BigInteger(randomBits.substring(2), 16);
        long low = random.longValue() & 0xFFF;
        long middle = random.shiftRight(12).longValue() & 0x3FFF;
        long high = random.shiftRight(26).longValue() & 0xFFFF_FFFF_FFFFL;
        return new java.util.UUID(atMs << 16 | 0x7000 | low, (0x8000 | middle) << 48 | high).toString();
    }

    private static long crc32(byte[] bytes) {
        var crc = new CRC32();
        crc.update(bytes);
        return crc.getValue();
    }

    private static String keyHash(byte[] orderingKey) {
        return String.format("%08x", crc32(orderingKey)) + hex(blake2b(orderingKey, 4));
    }

    private static final long[] START = {
        0x6a09e667f3bcc908L, 0xbb67ae8584caa73bL, 0x3c6ef372fe94f82bL, 0xa54ff53a5f1d36f1L,
        0x510e527fade682d1L, 0x9b05688c2b3e6c1fL, 0x1f83d9abfb41bd6bL, 0x5be0cd19137e2179L
    };
    private static final int[][] ORDER = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
        {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
        {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
        {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
        {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}
    };

    /** RFC 7693, without a key. */
    private static byte[] blake2b(byte[] input, int size) {
        long[] h = START.clone();
        h[0] ^= 0x01010000 ^ size;
        int blocks = Math.max(1, (input.length + 127) / 128);
        for (int block = 0; block < blocks; block++) {
            byte[] padded = new byte[128];
            int taken = Math.min(128, input.length - block * 128);
            System.arraycopy(input, block * 128, padded, 0, taken);
            var words = java.nio.ByteBuffer.wrap(padded).order(java.nio.ByteOrder.LITTLE_ENDIAN).asLongBuffer();
            long[] v = java.util.Arrays.copyOf(h, 16);
            System.arraycopy(START, 0, v, 8, 8);
            v[12] ^= block * 128L + taken;
            v[14] ^= block == blocks - 1 ? -1L : 0L;
            for (int round = 0; round < 12; round++) {
                int[] s = ORDER[round % 10];
                for (int at = 0; at < 8; at++) {
                    int shift = at / 4;
                    int column = at % 4;
                    mix(v, column, 4 + (column + shift) % 4, 8 + (column + 2 * shift) % 4, 12 + (column + 3 * shift) % 4,
                            words.get(s[2 * at]), words.get(s[2 * at + 1]));
                }
            }
            for (int at = 0; at < 8; at++) {
                h[at] ^= v[at] ^ v[at + 8];
            }
        }
        byte[] hash = new byte[size];
        for (int at = 0; at < size; at++) {
            hash[at] = (byte) (h[at / 8] >>> 8 * (at % 8));
        }
        return hash;
    }

    private static void mix(long[] v, int a, int b, int c, int d, long x, long y) {
        v[a] += v[b] + x;
        v[d] = Long.rotateRight(v[d] ^ v[a], 32);
        v[c] += v[d];
        v[b] = Long.rotateRight(v[b] ^ v[c], 24);
        v[a] += v[b] + y;
        v[d] = Long.rotateRight(v[d] ^ v[a], 16);
        v[c] += v[d];
        v[b] = Long.rotateRight(v[b] ^ v[c], 63);
    }

    private static String escaped(String reason) {
        var text = new StringBuilder();
        for (byte one : reason.getBytes(StandardCharsets.UTF_8)) {
            boolean isPlain = (one >= 'a' && one <= 'z') || (one >= 'A' && one <= 'Z') || (one >= '0' && one <= '9');
            text.append(isPlain || "_.-~ ".indexOf(one) >= 0 ? String.valueOf((char) one) : String.format("%%%02X", one));
        }
        return text.toString();
    }

    private static Map.Entry<String, byte[]> entry(String name, byte[] value) {
        return new java.util.AbstractMap.SimpleEntry<>(name, value);
    }

    private static byte[] bytes(JsonNode written) {
        return written.isNull() ? null : HexFormat.of().parseHex(written.get("hex").asText());
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "null" : HexFormat.of().formatHex(bytes);
    }
}
