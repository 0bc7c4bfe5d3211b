import java.util.Arrays;
import java.util.Collections;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Loads a cluster through the peer's own client and prints one JSON object per round.
 *
 * <p>Arguments are key=value: uri, mode (append, single, ledgers, scan, random), ensemble, write, ack,
 * size, count, inflight, v2 (true or false), rounds, ledger (for scan and random).
 */
public class PeerLoad {
    private static final byte[] PASSWORD = new byte[0];
    private static final BookKeeper.DigestType DIGEST = BookKeeper.DigestType.CRC32C;
    private static final int CHUNK = 500;
    private static final int CHUNKS_IN_FLIGHT = 4;

    private final Map<String, String> arguments = new HashMap<>();

    private String text(String key, String fallback) {
        return arguments.getOrDefault(key, fallback);
    }

    private int number(String key, int fallback) {
        return Integer.parseInt(text(key, Integer.toString(fallback)));
    }

    public static void main(String[] words) throws Exception {
        PeerLoad load = new PeerLoad();
        for (String word : words) {
            int cut = word.indexOf('=');
            load.arguments.put(word.substring(0, cut), word.substring(cut + 1));
        }
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(load.text("uri", ""));
        conf.setUseV2WireProtocol(Boolean.parseBoolean(load.text("v2", "true")));
        conf.setThrottleValue(0);
        conf.setNumWorkerThreads(1);
        conf.setNumIOThreads(1);
        conf.setAddEntryTimeout(30);
        load.arguments.forEach((key, value) -> {
            if (key.startsWith("conf.")) {
                conf.setProperty(key.substring(5), value);
            }
        });
        BookKeeper client = new BookKeeper(conf);
        for (int round = 0; round < load.number("rounds", 3); round++) {
            switch (load.text("mode", "append")) {
                case "append": load.append(client); break;
                case "single": load.single(client); break;
                case "ledgers": load.ledgers(client); break;
                case "scan": load.scan(client); break;
                default: load.random(client);
            }
        }
        System.exit(0);
    }

    private LedgerHandle create(BookKeeper client) throws Exception {
        return client.createLedger(
                number("ensemble", 3), number("write", 3), number("ack", 2), DIGEST, PASSWORD);
    }

    private void append(BookKeeper client) throws Exception {
        int count = number("count", 100000);
        LedgerHandle ledger = create(client);
        byte[] payload = new byte[number("size", 1024)];
        new Random(1).nextBytes(payload);
        Semaphore window = new Semaphore(number("inflight", 1000));
        CountDownLatch done = new CountDownLatch(count);
        AtomicLong failed = new AtomicLong();
        long[] nanos = new long[count];
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            window.acquire();
            final int index = i;
            final long sent = System.nanoTime();
            ledger.asyncAddEntry(payload, (rc, handle, entry, context) -> {
                nanos[index] = System.nanoTime() - sent;
                if (rc != 0 && failed.getAndIncrement() == 0) {
                    System.err.println("entry " + index + " failed: " + BKException.getMessage(rc));
                }
                window.release();
                done.countDown();
            }, null);
        }
        done.await();
        report(count, System.nanoTime() - start, nanos, failed.get(), ledger.getId());
        ledger.close();
    }

    private void single(BookKeeper client) throws Exception {
        int count = number("count", 3000);
        LedgerHandle ledger = create(client);
        byte[] payload = new byte[number("size", 1024)];
        long[] nanos = new long[count];
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            long sent = System.nanoTime();
            ledger.addEntry(payload);
            nanos[i] = System.nanoTime() - sent;
        }
        report(count, System.nanoTime() - start, nanos, 0, ledger.getId());
        ledger.close();
    }

    private void ledgers(BookKeeper client) throws Exception {
        int count = number("count", 3000);
        Semaphore window = new Semaphore(number("inflight", 1));
        CountDownLatch done = new CountDownLatch(count);
        AtomicLong failed = new AtomicLong();
        AtomicLong last = new AtomicLong();
        long[] nanos = new long[count];
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            window.acquire();
            final int index = i;
            final long sent = System.nanoTime();
            client.asyncCreateLedger(
                    number("ensemble", 3), number("write", 3), number("ack", 2), DIGEST, PASSWORD,
                    (created, ledger, context) -> {
                        if (created != 0) {
                            failed.incrementAndGet();
                            window.release();
                            done.countDown();
                            return;
                        }
                        last.set(ledger.getId());
                        ledger.asyncClose((closed, handle, ignored) -> {
                            nanos[index] = System.nanoTime() - sent;
                            if (closed != 0) {
                                failed.incrementAndGet();
                            }
                            window.release();
                            done.countDown();
                        }, null);
                    }, null, Collections.emptyMap());
        }
        done.await();
        report(count, System.nanoTime() - start, nanos, failed.get(), last.get());
    }

    private void scan(BookKeeper client) throws Exception {
        LedgerHandle ledger = client.openLedger(
                Long.parseLong(text("ledger", "0")), DIGEST, PASSWORD);
        int count = (int) ledger.getLastAddConfirmed() + 1;
        Semaphore window = new Semaphore(CHUNKS_IN_FLIGHT);
        CountDownLatch done = new CountDownLatch((count + CHUNK - 1) / CHUNK);
        AtomicLong got = new AtomicLong();
        long start = System.nanoTime();
        for (int first = 0; first < count; first += CHUNK) {
            window.acquire();
            ledger.asyncReadEntries(first, Math.min(count - 1, first + CHUNK - 1),
                    (rc, handle, entries, context) -> {
                        if (rc == 0) {
                            drain(entries, got);
                        }
                        window.release();
                        done.countDown();
                    }, null);
        }
        done.await();
        report(count, System.nanoTime() - start, new long[] {0}, count - got.get(), ledger.getId());
        ledger.close();
    }

    private static void drain(Enumeration<LedgerEntry> entries, AtomicLong got) {
        while (entries.hasMoreElements()) {
            if (entries.nextElement().getEntry().length > 0) {
                got.incrementAndGet();
            }
        }
    }

    private void random(BookKeeper client) throws Exception {
        LedgerHandle ledger = client.openLedger(
                Long.parseLong(text("ledger", "0")), DIGEST, PASSWORD);
        int entries = (int) ledger.getLastAddConfirmed() + 1;
        int count = number("count", 5000);
        Random random = new Random(2);
        long[] nanos = new long[count];
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            long entry = random.nextInt(entries);
            long sent = System.nanoTime();
            ledger.readEntries(entry, entry).nextElement().getEntry();
            nanos[i] = System.nanoTime() - sent;
        }
        report(count, System.nanoTime() - start, nanos, 0, ledger.getId());
        ledger.close();
    }

    private static void report(int count, long took, long[] nanos, long failed, long ledger) {
        Arrays.sort(nanos);
        int n = nanos.length;
        System.out.printf(
                "{\"entries_per_s\": %.1f, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"p999_ms\": %.4f, "
                        + "\"failed\": %d, \"ledger\": %d}%n",
                count * 1e9 / took, nanos[n / 2] / 1e6, nanos[(int) (n * 0.99)] / 1e6,
                nanos[(int) (n * 0.999)] / 1e6, failed, ledger);
    }
}
