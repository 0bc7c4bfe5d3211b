import java.net.URI;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.metadata.DLMetadata;

/**
 * Writes and reads streams with DistributedLog and prints one JSON object per round.
 *
 * <p>Arguments are key=value: servers (of ZooKeeper), ledgers (their path), namespace, stream (its
 * name, with case and round behind it), mode (write or read), size, rounds, and cases, separated by
 * commas, each batch:bulk:inflight:count: the bytes of an entry, the records that one call takes (1
 * to write each by a call of its own), the calls under way, and the records; conf.X sets X of
 * DistributedLog.  A round goes through all cases.
 */
public class PeerStreamLoad {
    private final Map<String, String> arguments = new HashMap<>();

    private String text(String key, String fallback) {
        return arguments.getOrDefault(key, fallback);
    }

    private int number(String key, int fallback) {
        return Integer.parseInt(text(key, Integer.toString(fallback)));
    }

    public static void main(String[] words) throws Exception {
        PeerStreamLoad load = new PeerStreamLoad();
        for (String word : words) {
            int cut = word.indexOf('=');
            load.arguments.put(word.substring(0, cut), word.substring(cut + 1));
        }
        URI uri = URI.create("distributedlog://" + load.text("servers", "")
                + load.text("namespace", "/messaging/bench"));
        bind(uri, load.text("servers", ""), load.text("ledgers", "/ledgers"));
        String[] cases = load.text("cases", "65536:500:64:500000").split(",");
        for (int round = 0; round < load.number("rounds", 3); round++) {
            for (String each : cases) {
                load.run(uri, new Case(each), round);
            }
        }
        System.exit(0);
    }

    private record Case(String name, int batch, int bulk, int inflight, int count) {
        Case(String text) {
            this(text.split(":"));
        }

        private Case(String[] parts) {
            this(parts[0] + "-" + parts[1], Integer.parseInt(parts[0]), Integer.parseInt(parts[1]),
                    Integer.parseInt(parts[2]), Integer.parseInt(parts[3]));
        }
    }

    private void run(URI uri, Case each, int round) throws Exception {
        String stream = text("stream", "s") + "-" + each.name() + "-" + round;
        Namespace namespace = NamespaceBuilder.newBuilder()
                .conf(configuration(each.batch())).uri(uri).clientId("bench").build();
        boolean writes = text("mode", "write").equals("write");
        if (writes) {
            namespace.createLog(stream);
        }
        try (DistributedLogManager log = namespace.openLog(stream)) {
            if (writes) {
                write(log, each);
            } else {
                read(log, each);
            }
        } finally {
            namespace.close();
        }
    }

    private static void bind(URI uri, String servers, String ledgers) throws Exception {
        try {
            DLMetadata.create(new BKDLConfig(servers, ledgers)).create(uri);
        } catch (java.io.IOException bound) {
            System.err.println(bound);
        }
    }

    private DistributedLogConfiguration configuration(int batch) {
        DistributedLogConfiguration conf = new DistributedLogConfiguration();
        conf.setEnsembleSize(number("ensemble", 3));
        conf.setWriteQuorumSize(number("write", 3));
        conf.setAckQuorumSize(number("ack", 2));
        conf.setImmediateFlushEnabled(false);
        conf.setPeriodicFlushFrequencyMilliSeconds(10);
        conf.setOutputBufferSize(batch);
        conf.setMaxLogSegmentBytes(1L << 31);
        conf.setLogSegmentRollingIntervalMinutes(0);
        conf.setRetentionPeriodHours(0);
        conf.setExplicitTruncationByApplication(true);
        conf.setNumWorkerThreads(2);
        // As far ahead as ours reads, 8 MB, but no more entries than a thousand.
        int ahead = Math.min(1024, (8 << 20) / batch);
        conf.setProperty("numPrefetchEntriesPerLogSegment", ahead);
        conf.setProperty("maxPrefetchEntriesPerLogSegment", ahead);
        conf.setProperty("bkc.throttle", 0);
        arguments.forEach((key, value) -> {
            if (key.startsWith("conf.")) {
                conf.setProperty(key.substring(5), value);
            }
        });
        return conf;
    }

    private void write(DistributedLogManager log, Case each) throws Exception {
        int count = each.count();
        int bulk = each.bulk();
        byte[] payload = new byte[number("size", 100)];
        new Random(1).nextBytes(payload);
        AsyncLogWriter writer = await(log.openAsyncLogWriter());
        await(writer.write(new LogRecord(0, payload)));
        int most = each.inflight();
        Semaphore window = new Semaphore(most);
        AtomicLong failed = new AtomicLong();
        long start = System.nanoTime();
        for (int first = 1; first <= count; first += bulk) {
            window.acquire();
            if (bulk == 1) {
                writer.write(new LogRecord(first, payload)).whenComplete((where, error) -> {
                    if (error != null) {
                        failed.incrementAndGet();
                    }
                    window.release();
                });
                continue;
            }
            List<LogRecord> records = new ArrayList<>(bulk);
            for (int i = first; i < Math.min(first + bulk, count + 1); i++) {
                records.add(new LogRecord(i, payload));
            }
            writer.writeBulk(records).whenComplete((stored, error) -> {
                if (error != null) {
                    failed.incrementAndGet();
                    window.release();
                    return;
                }
                // The records of a call share an entry: the last one's fate is that of all.
                CompletableFuture<DLSN> last = stored.get(stored.size() - 1);
                last.whenComplete((where, problem) -> {
                    if (problem != null) {
                        failed.incrementAndGet();
                    }
                    window.release();
                });
            });
        }
        window.acquire(most);
        report(each, System.nanoTime() - start, failed.get());
        await(writer.asyncClose());
    }

    private void read(DistributedLogManager log, Case each) throws Exception {
        int count = each.count() + 1;
        int got = 0;
        long bytes = 0;
        long start = System.nanoTime();
        AsyncLogReader reader = await(log.openAsyncLogReader(DLSN.InitialDLSN));
        while (got < count) {
            for (LogRecordWithDLSN record : await(reader.readBulk(Math.min(1000, count - got)))) {
                bytes += record.getPayload().length;
                got++;
            }
        }
        long took = System.nanoTime() - start;
        report(each, took, (long) count * number("size", 100) - bytes);
        await(reader.asyncClose());
    }

    private static <T> T await(CompletableFuture<T> future) throws Exception {
        return future.get(60, TimeUnit.SECONDS);
    }

    private static void report(Case each, long took, long failed) {
        System.out.printf(
                "{\"case\": \"%s\", \"records_per_s\": %.1f, \"failed\": %d}%n",
                each.name(), each.count() * 1e9 / took, failed);
    }
}
