import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own client. One record a line: key, value, then each header as NAME=VALUE, with tabs between; bytes in Base64, "~" for null.
 *
 * <pre>
 * JavaClient write SERVERS TOPIC COMPRESSION    writes each line of the input, in one Kafka transaction
 * JavaClient read SERVERS TOPIC COUNT           prints COUNT records of partition 0, committed ones alone
 * </pre>
 */
public final class JavaClient {
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[1]);
        if (arguments[0].equals("write")) {
            settings.put("compression.type", arguments[3]);
            write(settings, arguments[2]);
        } else {
            read(settings, arguments[2], Integer.parseInt(arguments[3]));
        }
    }

    private static void write(Properties settings, String topic) throws Exception {
        settings.put("transactional.id", topic + "-java");
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] fields = line.split("\t", -1);
                var message = new ProducerRecord<>(topic, 0, bytes(fields[0]), bytes(fields[1]));
                for (int at = 2; at < fields.length; at++) {
                    String[] header = fields[at].split("=", 2);
                    message.headers().add(header[0], bytes(header[1]));
                }
                producer.send(message);
            }
            producer.commitTransaction();
        }
    }

    private static void read(Properties settings, String topic, int count) {
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        var printed = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            long end = System.nanoTime() + PATIENCE.toNanos();
            for (int seen = 0; seen < count && System.nanoTime() < end; ) {
                for (ConsumerRecord<byte[], byte[]> message : consumer.poll(Duration.ofMillis(200))) {
                    var line = new StringBuilder(text(message.key())).append('\t').append(text(message.value()));
                    for (Header header : message.headers()) {
                        line.append('\t').append(header.key()).append('=').append(text(header.value()));
                    }
                    printed.println(line);
                    seen++;
                }
            }
        }
        printed.flush();
    }

    private static byte[] bytes(String text) {
        return text.equals("~") ? null : Base64.getDecoder().decode(text);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "~" : Base64.getEncoder().encodeToString(bytes);
    }
}
