import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.util.HashedWheelTimer;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookieInfoReader.BookieInfo;
import org.apache.bookkeeper.client.EnsemblePlacementPolicy;
import org.apache.bookkeeper.common.util.ReflectionUtils;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.feature.SettableFeatureProvider;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.net.DNSToSwitchMapping;
import org.apache.bookkeeper.stats.NullStatsLogger;

/** The peer's placement policies, asked without a cluster. */
final class PeerPlacement {
    boolean run(String op, JsonNode request, ObjectNode result) throws Exception {
        switch (op) {
            case "judge_placement": judge(request, result); return true;
            case "placement_weights": weights(request, result); return true;
            default: return false;
        }
    }

    /** Where bookies stand by their IP addresses; null where that is not known. */
    private static final class Table implements DNSToSwitchMapping {
        private final Map<String, String> rows = new HashMap<>();

        @Override
        public List<String> resolve(List<String> names) {
            List<String> found = new ArrayList<>();
            names.forEach(name -> found.add(rows.get(name)));
            return found;
        }

        @Override
        public void reloadCachedMappings() {
        }

        @Override
        public boolean useHostName() {
            return false;
        }
    }

    /**
     * Judges ensembles of a cluster, and chooses some itself.
     *
     * <p>"bookies" has ids and locations (or null), "ensembles" what is judged: ids and quorums; each
     * verdict is the number of its adherence, and whether the first ack quorum of it is enough. With
     * "new_size" so many ensembles are chosen; one is null if that is refused.
     */
    private void judge(JsonNode request, ObjectNode result) throws Exception {
        Table table = new Table();
        Set<BookieId> writable = new HashSet<>();
        request.get("bookies").fields().forEachRemaining(row -> {
            BookieId id = BookieId.parse(row.getKey());
            writable.add(id);
            if (!row.getValue().isNull()) {
                table.rows.put(row.getKey().split(":")[0], row.getValue().asText());
            }
        });
        ClientConfiguration conf = new ClientConfiguration();
        PeerServers.set(conf, request.get("conf"));
        EnsemblePlacementPolicy policy = ReflectionUtils.newInstance(
                request.get("policy").asText(), EnsemblePlacementPolicy.class);
        HashedWheelTimer timer = new HashedWheelTimer();
        policy.initialize(conf, Optional.of(table), timer, SettableFeatureProvider.DISABLE_ALL,
                NullStatsLogger.INSTANCE, BookieSocketAddress.LEGACY_BOOKIEID_RESOLVER);
        policy.onClusterChanged(writable, Collections.emptySet());
        ArrayNode verdicts = result.putArray("verdicts");
        for (JsonNode each : request.get("ensembles")) {
            List<BookieId> ids = new ArrayList<>();
            each.get("bookies").forEach(id -> ids.add(BookieId.parse(id.asText())));
            int writes = each.get("write_quorum").asInt();
            int acks = each.get("ack_quorum").asInt();
            verdicts.addArray()
                    .add(policy.isEnsembleAdheringToPlacementPolicy(ids, writes, acks).getNumVal())
                    .add(policy.areAckedBookiesAdheringToPlacementPolicy(
                            new HashSet<>(ids.subList(0, acks)), writes, acks));
        }
        ArrayNode chosen = result.putArray("chosen");
        JsonNode shape = request.get("new");
        for (int i = 0; shape != null && i < shape.get("times").asInt(); i++) {
            try {
                List<BookieId> ids = policy.newEnsemble(shape.get("ensemble_size").asInt(),
                        shape.get("write_quorum").asInt(), shape.get("ack_quorum").asInt(),
                        Collections.emptyMap(), new HashSet<>()).getResult();
                ArrayNode row = chosen.addArray();
                ids.forEach(id -> row.add(id.toString()));
            } catch (BKException.BKNotEnoughBookiesException | IllegalArgumentException refused) {
                chosen.addNull();
            }
        }
        policy.uninitalize();
        timer.stop();
    }

    /** Tells how likely each bookie is chosen by its free space. */
    private void weights(JsonNode request, ObjectNode result) throws Exception {
        Class<?> kind = Class.forName("org.apache.bookkeeper.client.WeightedRandomSelectionImpl");
        Constructor<?> constructor = kind.getDeclaredConstructor(int.class);
        constructor.setAccessible(true);
        Object selection = constructor.newInstance(request.get("max_multiple").asInt());
        Map<String, BookieInfo> free = new HashMap<>();
        request.get("free").fields().forEachRemaining(row ->
                free.put(row.getKey(), new BookieInfo(0L, row.getValue().asLong())));
        Method update = kind.getDeclaredMethod("updateMap", Map.class);
        update.setAccessible(true);
        update.invoke(selection, free);
        Field cumulative = kind.getDeclaredField("cumulativeMap");
        Field most = kind.getDeclaredField("randomMax");
        cumulative.setAccessible(true);
        most.setAccessible(true);
        @SuppressWarnings("unchecked")
        TreeMap<Double, String> steps = (TreeMap<Double, String>) cumulative.get(selection);
        ObjectNode weights = result.putObject("weights");
        for (Map.Entry<Double, String> step : steps.entrySet()) {
            Double next = steps.higherKey(step.getKey());
            double end = next != null ? next : (Double) most.get(selection);
            weights.put(step.getValue(), end - step.getKey());
        }
    }
}
