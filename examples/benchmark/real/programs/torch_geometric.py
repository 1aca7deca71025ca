"""PyG: the mini-batches of its introduction, a classification of graphs."""

import torch
import torch.nn.functional as F
from measured import note, training
from torch_geometric.data import Data, Dataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool
from torch_geometric.transforms import AddSelfLoops, Compose, NormalizeFeatures


class Proteins(Dataset):
    def __init__(self, transform):
        super().__init__(None, transform)
        self.graphs = []
        for number in range(2000):
            nodes = int(torch.randint(8, 30, ()))
            edges = torch.randint(0, nodes, (2, nodes * 3))
            y = torch.tensor([number % 2])
            self.graphs.append(Data(x=torch.rand(nodes, 8), edge_index=edges, y=y, number=number))

    def len(self):
        return len(self.graphs)

    def get(self, i):
        return self.graphs[i]


class GCN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(8, 32), GCNConv(32, 32)
        self.lin = torch.nn.Linear(32, 2)

    def forward(self, data):
        x = F.relu(self.conv1(data.x, data.edge_index))
        x = self.conv2(x, data.edge_index)
        return self.lin(global_mean_pool(x, data.batch))


dataset = Proteins(Compose([NormalizeFeatures(), AddSelfLoops()]))
loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2)

with training(epochs=3):
    model = GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        for batch in loader:
            note(batch.number)
            optimizer.zero_grad()
            F.cross_entropy(model(batch), batch.y).backward()
            optimizer.step()
